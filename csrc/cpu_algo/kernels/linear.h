// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// A fully connected layer of few inputs. Its time is that of reading the weights from memory once,
// so they are read where the model has them, [k, c], in a few long streams side by side.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// dst = activation(src * weights^T + bias); all tensors are contiguous, n >= 1.
struct Linear {
  const float* src;      // [n, c]
  const float* weights;  // [k, c]
  const float* bias;     // [k]; nullptr: none
  float* dst;            // [n, k]
  std::int64_t n, c, k;
  Activation activation;
};

/// Output channels [begin, end) of k for all inputs. The bits of an element depend on its input and
/// its row of weights only: not on n, k, or the range.
TORCHALGO_DECLARE_KERNEL(void run_linear(const Linear& linear, std::int64_t begin,
                                         std::int64_t end))

}  // namespace torchalgo::kernels
