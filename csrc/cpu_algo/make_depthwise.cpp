// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/make_depthwise.h"

#include <utility>

#include "cpu_algo/backward_data.h"
#include "standalone/conv.h"

namespace torchalgo::cpu {
namespace {

Offer offer(const DepthwiseAlgorithm& depthwise, const Problem& problem) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  std::string refusal = refuse_conv(*conv);
  if (refusal.empty()) refusal = depthwise.refuse(*conv);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  const std::string name(depthwise.name);
  Offer offer;
  offer.primitives.push_back({name, Layout::kNChw16c, Layout::kNChw16c});
  // In nhwc the last block of 16 channels overlaps the block before it. There is no masking, so 16
  // channels are needed.
  if (conv->c >= 16) offer.primitives.push_back({name, Layout::kNhwc, Layout::kNhwc});
  return offer;
}

}  // namespace

Algorithm make_depthwise(const DepthwiseAlgorithm& depthwise) {
  Algorithm algorithm;
  algorithm.name = depthwise.name;
  algorithm.version = depthwise.version;
  algorithm.rounding = 1;
  algorithm.offer = [depthwise](const Problem& problem, const Device&) {
    return offer(depthwise, problem);
  };
  algorithm.bind = [run = depthwise.run](const Problem& problem, const Primitive& primitive,
                                         const Device& device) {
    const auto& conv = std::get<ConvProblem>(problem);
    PlainKernel kernel = bind_depthwise(conv, primitive.src, run, device.threads);
    kernel.least_work = [=] { return direct_work(problem); };
    return kernel;
  };
  algorithm.packs_for_all_sizes = true;
  return with_backward_data(std::move(algorithm));
}

}  // namespace torchalgo::cpu
