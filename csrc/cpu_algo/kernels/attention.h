// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The strides of one matrix per image and head, in floats.
struct HeadStrides {
  std::int64_t image, head, row, column;
};

/// The matrices of each image and head: q is [queries, depth], k [keys, depth], v [keys, width] and
/// dst [queries, width]. Any strides are allowed.
struct HeadMatrices {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  float* dst = nullptr;
  HeadStrides q_strides = {}, k_strides = {}, v_strides = {}, dst_strides = {};
  std::int64_t images = 1, heads = 1;
  std::int64_t queries = 1, keys = 1, depth = 1, width = 1;
};

/// Attention of each head: dst = softmax(scale * q * k^T + bias) * v, where the softmax is that of
/// each row.
struct Attention : HeadMatrices {
  const float* bias = nullptr;  // [queries, keys], or null
  HeadStrides bias_strides = {};
  float scale = 1;
  std::int64_t parts = 1;  // tasks per head; each has a part of the queries
};

/// Attention without softmax of each head: dst = q' * (k'^T * v) / (q' * (k'^T * 1) + epsilon),
/// where q' = relu(q) and k' = relu(k), and 1 is a column of ones. Each row is divided by its own
/// number. Source: Cai et al., "EfficientViT", ICCV 2023.
struct LinearAttention : HeadMatrices {
  float epsilon = 0;
};

// Returns the bytes of scratch that `attention` needs per thread, a multiple of 64.
TORCHALGO_DECLARE_KERNEL(std::int64_t attention_scratch_bytes(const Attention& attention))

// Runs tasks [begin, end) of images * heads * parts. `scratch` belongs to this thread and is
// aligned to 64 bytes.
TORCHALGO_DECLARE_KERNEL(void run_attention(const Attention& attention, std::int64_t begin,
                                            std::int64_t end, void* scratch))

// Returns the bytes of scratch that linear attention needs per thread, a multiple of 64.
TORCHALGO_DECLARE_KERNEL(
    std::int64_t linear_attention_scratch_bytes(const LinearAttention& attention))

// Runs tasks [begin, end) of images * heads. `scratch` is as in run_attention.
TORCHALGO_DECLARE_KERNEL(void run_linear_attention(const LinearAttention& attention,
                                                   std::int64_t begin, std::int64_t end,
                                                   void* scratch))

}  // namespace torchalgo::kernels
