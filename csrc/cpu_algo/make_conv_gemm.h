// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "provider/algorithm.h"

namespace torchalgo::cpu {

/// An algorithm whose kernel is kernels::conv_gemm. The kernel runs any forward 2-D convolution
/// from nchw, nhwc or nChw16c to nhwc or nChw16c. It also runs gradients with respect to src that
/// are forward convolutions. Such algorithms differ in the problems that they offer.
struct ConvGemmAlgorithm {
  std::string_view name;
  int version = 6;
  std::vector<std::pair<Layout, Layout>> layouts;         // src and dst of its primitives
  std::function<std::string(const ConvProblem&)> refuse;  // the reason, or empty if it can run
  /// Widths of panels that are offered as variants with AVX-512, if they divide the output channels
  /// in another way than the default width. The variant <name>.bN has panels of at most N blocks of
  /// 16 channels.
  std::vector<int> widths = {};
  bool strassen = false;  // runs kernels::strassen; offers only what can_strassen accepts
};
[[nodiscard]] Algorithm make_conv_gemm(ConvGemmAlgorithm own, std::string_view isa);

}  // namespace torchalgo::cpu
