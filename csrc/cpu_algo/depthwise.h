// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Convolutions with one filter per channel or with narrow groups, which kernels::Depthwise
// describes. They run alone or as one step of several.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cpu_algo/kernels/depthwise.h"
#include "ir/algorithm.h"
#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// Returns true if there is one filter per channel.
[[nodiscard]] bool is_depthwise(const ConvProblem& conv);

/// Returns sizes, strides and activation for a layout, nChw16c or nhwc of any type, without
/// pointers.
[[nodiscard]] kernels::Depthwise depthwise_args(const ConvProblem& conv, Layout layout);

/// Packs the weights [c, group, r, s] as [blocks, r, s, group, 16] or, for nhwc, as
/// [r, s, group, c]. Pad lanes become zero.
void pack_depthwise(const ConvProblem& conv, Layout layout, const float* weights, float* packed);
/// Returns the floats that pack_depthwise writes.
[[nodiscard]] std::int64_t depthwise_weight_floats(const ConvProblem& conv, Layout layout);
/// Returns the floats of the bias that the kernel reads: one per channel, and zeros in pad lanes.
[[nodiscard]] std::int64_t depthwise_bias_floats(const ConvProblem& conv, Layout layout);

using DepthwiseRun = decltype(&kernels::default_isa::run_depthwise);

/// Returns the kernel for nhwc.bf16 that runs on the device beside kernels for `isa`.
[[nodiscard]] DepthwiseRun pick_bf16_depthwise(std::string_view isa, const Device& device);

/// An algorithm whose kernels take kernels::Depthwise, in nChw16c and nhwc. It also computes
/// gradients with respect to src that are forward convolutions.
struct DepthwiseAlgorithm {
  std::string_view name;
  int version;
  std::string (*refuse)(const ConvProblem&);  // the reason, or empty if it can run
  DepthwiseRun run;
  std::function<DepthwiseRun(const Device&)> pick_bf16;  // null if it lacks nhwc.bf16
};
[[nodiscard]] Algorithm make_depthwise(const DepthwiseAlgorithm& depthwise);

}  // namespace torchalgo::cpu
