// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "provider/algorithm.h"
#include "standalone/depthwise.h"

namespace torchalgo::cpu {

/// An algorithm whose kernel takes kernels::Depthwise, in nChw16c and nhwc. It also computes
/// gradients with respect to src that are forward convolutions.
struct DepthwiseAlgorithm {
  std::string_view name;
  int version;
  std::string (*refuse)(const ConvProblem&);  // the reason, or empty if it can run
  DepthwiseRun run;
};
[[nodiscard]] Algorithm make_depthwise(const DepthwiseAlgorithm& depthwise);

}  // namespace torchalgo::cpu
