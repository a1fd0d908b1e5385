// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/padded_backward_filter.h"

#include <fmt/format.h>

#include <string>

#include "provider/algorithm.h"
#include "standalone/conv.h"

namespace torchalgo::cpu {
namespace {

constexpr std::string_view kStem = "cpu.stem_backward_filter";
constexpr std::string_view kDepthwise = "cpu.depthwise_backward_filter";
constexpr std::int64_t kMostChannels = 4;  // of a stem
constexpr std::int64_t kBlock = 16;

std::string refuse_stem(const ConvProblem& conv) {
  if (conv.groups != 1) return fmt::format("needs 1 group, got {}", conv.groups);
  if (conv.c > kMostChannels)
    return fmt::format("needs at most {} input channels, got {}", kMostChannels, conv.c);
  return {};
}

std::string refuse_depthwise(const ConvProblem& conv) {
  if (conv.groups != conv.c || conv.k != conv.c) {
    return fmt::format("needs one filter per channel, got {} groups of {} to {} channels",
                       conv.groups, conv.c, conv.k);
  }
  return {};
}

PlainKernel bind_named(const ConvProblem& conv, const Primitive& primitive, std::string_view isa,
                       std::int64_t threads) {
  return primitive.name == kStem
             ? bind_stem_backward_filter(conv, primitive.src, isa, threads)
             : bind_depthwise_backward_filter(conv, primitive.src, isa, threads);
}

std::vector<Primitive> primitives_of(std::string_view name, const ConvProblem& conv) {
  const std::string text(name);
  if (name == kStem) {
    return {{text, Layout::kNchw, Layout::kNChw16c}, {text, Layout::kNhwc, Layout::kNChw16c}};
  }
  std::vector<Primitive> all = {{text, Layout::kNChw16c, Layout::kNChw16c}};
  // In nhwc the last block of 16 channels overlaps the block before it.
  if (conv.c >= kBlock) all.push_back({text, Layout::kNhwc, Layout::kNhwc});
  return all;
}

Offer offer(std::string_view name, const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  const auto refuse_own = name == kStem ? refuse_stem : refuse_depthwise;
  for (const auto refuse : {refuse_backward_filter, refuse_dilation, refuse_own}) {
    if (std::string refusal = refuse(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  }
  Offer offer = {primitives_of(name, *conv), {}};
  for (Primitive& primitive : offer.primitives) {
    primitive.workspace_bytes =
        bind_named(*conv, primitive, device.isa, device.threads).workspace_bytes;
  }
  return offer;
}

Algorithm make(std::string_view name, const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.rounding = 1;
  algorithm.offer = [name](const Problem& problem, const Device& device) {
    return offer(name, problem, device);
  };
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device& device) {
    const auto& conv = std::get<ConvProblem>(problem);
    PlainKernel kernel = bind_named(conv, primitive, isa, device.threads);
    kernel.least_work = [=] { return direct_work(problem); };
    return kernel;
  };
  return algorithm;
}

}  // namespace

// Makes the gradients with respect to weights of first and of depthwise convolutions.
Algorithms padded_backward_filter(const std::string& isa) {
  return {make(kStem, isa), make(kDepthwise, isa)};
}

}  // namespace torchalgo::cpu
