// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <string>

#include "cpu_algo/kernels/direct_backward_filter.h"
#include "provider/algorithm.h"
#include "standalone/conv.h"
#include "standalone/direct_backward_filter.h"

namespace torchalgo::cpu {
namespace {

constexpr std::string_view kName = "cpu.outer_product";

std::string refusal_of(const ConvProblem& conv) {
  std::string refusal = refuse_backward_filter(conv);
  if (!refusal.empty()) return refusal;
  for (const auto refuse : {refuse_dilation, refuse_broken_groups}) {
    if (refusal = refuse(conv); !refusal.empty()) return refusal;
  }
  if (conv.r * conv.s > kernels::kMostBackwardFilterTaps) {
    return fmt::format("needs at most {} taps, got {}x{}", kernels::kMostBackwardFilterTaps, conv.r,
                       conv.s);
  }
  return {};
}

Offer offer(const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  const std::int64_t workspace =
      bind_direct_backward_filter(*conv, device.isa, device.threads).workspace_bytes;
  return {{{std::string(kName), Layout::kNChw16c, Layout::kNChw16c, workspace}}, {}};
}

}  // namespace

// Makes the gradient with respect to weights as sums of outer products.
Algorithm outer_product(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = kName;
  algorithm.rounding = 1;
  algorithm.offer = offer;
  algorithm.bind = [isa](const Problem& problem, const Primitive&, const Device& device) {
    const auto& conv = std::get<ConvProblem>(problem);
    PlainKernel kernel = bind_direct_backward_filter(conv, isa, device.threads);
    kernel.least_work = [=] { return direct_work(problem); };
    return kernel;
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
