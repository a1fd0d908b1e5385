// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// A fully connected layer of few inputs. Its time is that of reading the weights once. They are
// read from the model's [k, c] in a few parallel streams, or from panels, which are a copy in the
// order of reading. Long rows are equally fast in both ways. Streams of short rows end before they
// reach their full speed.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A linear layer, dst = activation(src * weights^T + bias). All tensors are contiguous, n >= 1.
struct Linear {
  const float* src;      // [n, c]
  const float* weights;  // [k, c], or panels
  const float* bias;     // [k], or null
  float* dst;            // [n, k]
  std::int64_t n, c, k;
  Activation activation;
};

/// Rows of a panel. Panels are [ceil(k / 8), ceil(c / 16), 8, 16], with zeros where there is no
/// weight. After panels of f16 there are ceil(k / 8) * 8 floats: the factor of each row.
inline constexpr std::int64_t kLinearPanel = 8;

/// The bits of an element depend on its input and its row of weights only: not on n, k, the range,
/// or which function computes it.
TORCHALGO_DECLARE_KERNEL(
    /// Computes output channels [begin, end) of k for all inputs; weights [k, c].
    void run_linear(const Linear& linear, std::int64_t begin, std::int64_t end);
    /// Computes panels [begin, end) of ceil(k / 8) for all inputs.
    void run_linear_panels(const Linear& linear, std::int64_t begin, std::int64_t end);
    /// Compute the same from weights that are stored as bf16 or f16, and convert them in registers.
    void run_linear_panels_bf16(const Linear& linear, std::int64_t begin, std::int64_t end);
    void run_linear_panels_f16(const Linear& linear, std::int64_t begin, std::int64_t end))

}  // namespace torchalgo::kernels
