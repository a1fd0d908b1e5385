// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// The matrix product of a 1x1 convolution with seven products of quarters instead of eight:
// Strassen's algorithm in Winograd's form (S. Winograd, 1971), one level. Pixels x K by K x output
// channels are halved in each direction:
//   S1 = A21 + A22   S2 = S1 - A11    S3 = A11 - A21   S4 = A12 - S2
//   T1 = B12 - B11   T2 = B22 - T1    T3 = B22 - B12   T4 = T2 - B21
//   P1 = A11 B11   P2 = A12 B21   P3 = S4 B22   P4 = A22 T4   P5 = S1 T1   P6 = S2 T2   P7 = S3 T3
//   C11 = P1 + P2           C12 = P1 + P6 + P5 + P3
//   C21 = P1 + P6 + P7 - P4   C22 = P1 + P6 + P7 + P5 Pixels are halved within a pair of register
//   tiles, so that the P are summed in registers. The S of a block of pixels and the T of a panel
//   lie in L2. A T that is packed in advance would take 7 / 4 of the memory. In a network, reading
//   it takes longer than the additions.

#include <cstdint>

#include "cpu_algo/kernels/conv_gemm.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// Returns how many of `count` planes of K, blocks of output channels or pixels are in the first
/// half. If the second half has one less, zeros fill it up. A ConvGemm with `strassen` has its
/// weights as [half of the blocks][panel][K][panel's blocks * 16], panels of half the blocks, with
/// zeros for the block that an odd number lacks.
[[nodiscard]] constexpr std::int64_t strassen_half(std::int64_t count) { return (count + 1) / 2; }

// Returns the bytes of scratch that `strassen` needs per thread, a multiple of 64.
TORCHALGO_DECLARE_KERNEL(std::int64_t strassen_scratch_bytes(const ConvGemm& conv))

// Runs tasks [begin, end) of conv_gemm_tasks(conv).
TORCHALGO_DECLARE_KERNEL(void strassen(const ConvGemm& conv, std::int64_t begin, std::int64_t end,
                                       void* scratch))

}  // namespace torchalgo::kernels
