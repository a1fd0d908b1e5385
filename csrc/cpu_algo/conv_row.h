// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// What the convolution rows share.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "cpu_algo/kernels/activation.h"
#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// Why no row of ours runs `conv`, whatever its algorithm: it needs f32, forward, 2-D, an epilogue
/// of the form act(result + bias + residual), and tensors below 2^31 elements. Empty: none.
[[nodiscard]] std::string refuse_conv(const ConvProblem& conv);

/// Why a row without dilation and groups does not run `conv`. Empty: it does.
[[nodiscard]] std::string refuse_dilation_and_groups(const ConvProblem& conv);

/// The activation of an epilogue that refuse_conv accepted.
[[nodiscard]] kernels::Activation activation_of(const Epilogue& epilogue);

/// Allocates a tensor of zeros. It is declared here because ATen/ops/zeros.h takes seconds to
/// compile.
[[nodiscard]] at::Tensor zero_floats(at::IntArrayRef sizes);

/// `bias` followed by zeros up to `count` floats; all zeros if it is undefined.
[[nodiscard]] at::Tensor pad_bias(const at::Tensor& bias, std::int64_t count);

/// Returns `primitive` with another workspace.
[[nodiscard]] Primitive with_workspace(Primitive primitive, std::int64_t bytes);

/// The N of a variant "<name>.tN".
[[nodiscard]] std::int64_t variant_number(const Primitive& primitive);

[[nodiscard]] constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// How `count` channels spread over blocks of 16.
[[nodiscard]] constexpr std::int64_t channel_blocks(std::int64_t count) {
  return ceil_div(count, 16);
}

/// Calls run(begin, end, slice) for parts of [0, tasks) on several threads: `slices` parts at most,
/// each with its own slice number < slices, whatever the number of threads.
template <class Run>
void run_in_slices(std::int64_t tasks, std::int64_t slices, const Run& run) {
  const std::int64_t parts = std::min(tasks, slices);
  at::parallel_for(0, parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      run(tasks * part / parts, tasks * (part + 1) / parts, part);
    }
  });
}

}  // namespace torchalgo::cpu
