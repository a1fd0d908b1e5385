// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ir/problem.h"

namespace torchalgo {

/// The largest number in a problem, the most elements of a tensor, zeros around the image included,
/// and the most operations. All of them are beyond any machine. They leave room for padded blocks
/// of channels, transforms and bytes, so that no count overflows 64 bits.
inline constexpr std::int64_t kMostNumber = 1'000'000'000;
inline constexpr double kMostElements = 0x1p40, kMostFlops = 0x1p58;

/// Returns the reason why `problem` is beyond one of these limits, or an empty string. Each
/// function that makes a problem from numbers of a user asks this. So no other function needs to.
[[nodiscard]] std::string refuse_sizes(const Problem& problem);

/// Returns the bytes of an element in memory.
[[nodiscard]] std::int64_t element_bytes(DType dtype);

/// Returns the multiplications and additions of the operation by its definition, so they do not
/// depend on the algorithm. An FMA counts 2; moving data counts 0.
[[nodiscard]] double flop_count(const Problem& problem);

/// Returns the part of flop_count() that every algorithm without a transform like Winograd's must
/// do. Products with padding are not counted. Only convolutions, linear layers and attention count,
/// also those in a chain.
[[nodiscard]] double least_flop_count(const Problem& problem);

/// Returns the number of elements of the first data input that the result depends on. A window with
/// a stride may skip some.
[[nodiscard]] double elements_read(const Problem& problem);

/// Returns the number of terms in the sum of one result element, for the estimate of rounding
/// errors. Returns nullopt if the result is exact because it holds only copied elements or zeros.
/// @throws InternalError  for a chain, whose layers round one after the other.
[[nodiscard]] std::optional<double> terms_per_element(const Problem& problem);

}  // namespace torchalgo
