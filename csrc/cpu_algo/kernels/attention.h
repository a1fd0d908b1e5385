// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The strides of one matrix per image and head, in floats.
struct HeadStrides {
  std::int64_t image, head, row, column;
};

/// Attention of each head: dst = softmax(scale * q * k^T + bias) * v, where the softmax is that of
/// each row. q is [queries, depth], k [keys, depth], v [keys, width], the bias [queries, keys] and
/// dst [queries, width]. Any strides are allowed.
struct Attention {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* bias = nullptr;  // or null
  float* dst = nullptr;
  HeadStrides q_strides = {}, k_strides = {}, v_strides = {}, bias_strides = {}, dst_strides = {};
  std::int64_t images = 1, heads = 1;
  std::int64_t queries = 1, keys = 1, depth = 1, width = 1;
  float scale = 1;
  std::int64_t parts = 1;  // tasks per head; each has a part of the queries
};

// Returns the bytes of scratch that `attention` needs per thread, a multiple of 64.
TORCHALGO_DECLARE_KERNEL(std::int64_t attention_scratch_bytes(const Attention& attention))

// Runs tasks [begin, end) of images * heads * parts. `scratch` belongs to this thread and is
// aligned to 64 bytes.
TORCHALGO_DECLARE_KERNEL(void run_attention(const Attention& attention, std::int64_t begin,
                                            std::int64_t end, void* scratch))

}  // namespace torchalgo::kernels
