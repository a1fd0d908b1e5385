// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// An algorithm whose kernel is kernels::conv_gemm, which runs any forward 2-D convolution from
/// nchw, nhwc or nChw16c to nhwc or nChw16c, and its gradient with respect to src where that is
/// one. Such algorithms differ in what they claim.
struct ConvGemmAlgorithm {
  std::string_view name;
  int version = 6;
  std::vector<std::pair<Layout, Layout>> layouts;         // src and dst of its primitives
  std::function<std::string(const ConvProblem&)> refuse;  // why not; empty: it can run
  /// Widths of panels beside the default one that are offered as variants with AVX-512, where they
  /// cut the output channels otherwise: <name>.bN has panels of at most N blocks of 16 channels.
  std::vector<int> widths = {};
  bool strassen = false;  // runs kernels::strassen; claims what can_strassen only
};
[[nodiscard]] Algorithm make_conv_gemm(ConvGemmAlgorithm own, std::string_view isa);

}  // namespace torchalgo::cpu
