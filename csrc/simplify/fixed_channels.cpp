// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/fixed_channels.h"

#include <algorithm>

#include "simplify/constant_conv.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Node;
using script::Value;

bool has_fixed_channels(Value value, const std::vector<std::int64_t>& sizes) {
  constexpr int kMostSteps = 64;
  for (int step = 0; step < kMostSteps; ++step) {
    const Node node = value.node();
    if (const auto conv = read_constant_conv(node)) {
      return conv->weight.dim() == std::ssize(sizes) && result_channels(*conv) == sizes[1];
    }
    if (node.is("aten::batch_norm") &&
        (!is_none(node.input(1)) || !is_none(node.input(3))))  // weights or running means
      return true;
    const bool keeps =
        is_elementwise(node) ||
        node.is("aten::max_pool2d", "aten::avg_pool2d", "aten::adaptive_avg_pool2d",
                "aten::group_norm", "aten::instance_norm", "aten::mul", "aten::upsample_nearest2d",
                "aten::upsample_bilinear2d", "aten::add", "aten::sub", "aten::reciprocal",
                "aten::abs", "aten::exp", "aten::sqrt", "aten::pow");
    if (!keeps || !is_tensor(node.input(0))) return false;
    value = node.input(0);
  }
  return false;
}

bool are_channels_fixed(Value src, Value dst, const std::vector<std::int64_t>& sizes) {
  const auto is_of_convolution = [&](const script::Use& use) {
    const auto conv = read_constant_conv(use.user);
    return conv && use.offset == 0 && conv->weight.dim() == std::ssize(sizes);
  };
  return has_fixed_channels(src, sizes) || std::ranges::any_of(dst.uses(), is_of_convolution);
}

}  // namespace torchalgo
