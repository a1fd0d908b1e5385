// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// A convolution of one filter per channel, or of narrow groups, as kernels::Depthwise wants it,
// alone or as a part of more.

#include <string>
#include <string_view>

#include "cpu_algo/kernels/depthwise.h"
#include "ir/layout.h"
#include "ir/problem.h"
#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// One filter per channel.
[[nodiscard]] bool is_depthwise(const ConvProblem& conv);

/// Sizes, strides and activation for a layout, nChw16c or nhwc; without pointers.
[[nodiscard]] kernels::Depthwise depthwise_args(const ConvProblem& conv, Layout layout);

/// The weights [c, group, r, s] as [blocks, r, s, group, 16] or, for nhwc, [r, s, group, c]; the
/// bias likewise, zeros if there is none.
[[nodiscard]] Packed pack_depthwise(const ConvProblem& conv, Layout layout,
                                    const LayerWeights& layer);

/// How many floats both are.
[[nodiscard]] std::int64_t packed_depthwise_floats(const ConvProblem& conv, Layout layout);

/// An algorithm whose kernel takes kernels::Depthwise, in nChw16c and nhwc. It also computes the
/// gradient with respect to src where that is a forward convolution.
struct DepthwiseAlgorithm {
  std::string_view name;
  int version;
  std::string (*refuse)(const ConvProblem&);  // why not; empty: it can run
  decltype(&kernels::default_isa::run_depthwise) run;
};
[[nodiscard]] Algorithm make_depthwise(const DepthwiseAlgorithm& depthwise);

}  // namespace torchalgo::cpu
