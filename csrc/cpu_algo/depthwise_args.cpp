// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/depthwise_args.h"

#include <ATen/Parallel.h>

#include <utility>

#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv_row.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kBlock = 16;

Offer offer(const DepthwiseAlgorithm& depthwise, const Problem& problem) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  std::string refusal = refuse_conv(*conv);
  if (refusal.empty()) refusal = depthwise.refuse(*conv);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  const std::string name(depthwise.name);
  Offer offer;
  offer.primitives.push_back({name, Layout::kNChw16c, Layout::kNChw16c});
  // In nhwc the last 16 channels overlap those before them instead of being masked.
  if (conv->c >= kBlock) offer.primitives.push_back({name, Layout::kNhwc, Layout::kNhwc});
  return offer;
}

Kernel prepare(const DepthwiseAlgorithm& depthwise, const Problem& problem,
               const Primitive& primitive) {
  const auto& conv = std::get<ConvProblem>(problem);
  const Layout layout = primitive.src;
  const kernels::Depthwise geometry = depthwise_args(conv, layout);
  // Some 10 us of work per thread, else its start costs more than it saves.
  constexpr std::int64_t kLeastWork = 300'000;
  const std::int64_t grain =
      kLeastWork / (geometry.q * geometry.pixel * conv.r * conv.s * geometry.group) + 1;
  const std::int64_t tasks = conv.n * geometry.blocks * geometry.p;
  return {.problem = problem,
          .primitive = primitive,
          .run =
              [=, run = depthwise.run](const KernelArgs& args) {
                kernels::Depthwise part = geometry;
                part.src = args.src[0].const_data_ptr<float>();
                part.weights = args.packed[0].const_data_ptr<float>();
                part.bias = args.packed[1].const_data_ptr<float>();
                if (args.residual.defined()) part.residual = args.residual.const_data_ptr<float>();
                part.dst = args.dst.mutable_data_ptr<float>();
                at::parallel_for(0, tasks, grain, [&](std::int64_t begin, std::int64_t end) {
                  run(part, begin, end);
                });
                return args.dst;
              },
          .pack = [=](const Weights& weights) { return pack_depthwise(conv, layout, weights[0]); },
          .packed_bytes =
              [=] { return packed_depthwise_floats(conv, layout) * std::int64_t{sizeof(float)}; },
          .least_work = [=] { return direct_work(problem); }};
}

}  // namespace

bool is_depthwise(const ConvProblem& conv) { return conv.groups == conv.c && conv.k == conv.c; }

kernels::Depthwise depthwise_args(const ConvProblem& conv, Layout layout) {
  const bool is_nhwc = layout == Layout::kNhwc;
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  kernels::Depthwise args;
  args.blocks = is_nhwc ? 1 : channel_blocks(conv.c);
  args.pixel = is_nhwc ? conv.c : kBlock;
  args.pad_lanes = is_nhwc ? 0 : args.blocks * kBlock - conv.c;
  args.h = conv.h;
  args.w = conv.w;
  args.p = dst[2];
  args.q = dst[3];
  args.src_plane = args.h * args.w * args.pixel;
  args.dst_plane = args.p * args.q * args.pixel;
  args.group = conv.c / conv.groups;
  args.r = conv.r;
  args.s = conv.s;
  args.stride_h = conv.stride_h;
  args.stride_w = conv.stride_w;
  args.pad_h = conv.pad_h;
  args.pad_w = conv.pad_w;
  args.dilation_h = conv.dilation_h;
  args.dilation_w = conv.dilation_w;
  args.activation = activation_of(conv.epilogue);
  return args;
}

Packed pack_depthwise(const ConvProblem& conv, Layout layout, const LayerWeights& layer) {
  const std::int64_t lanes = layout == Layout::kNhwc ? conv.c : kBlock;
  const std::int64_t blocks = ceil_div(conv.c, lanes);
  const std::int64_t taps = conv.r * conv.s, group = conv.c / conv.groups;
  const at::Tensor plain = layer.weights.contiguous();
  const at::Tensor packed = zero_floats({blocks, taps, group, lanes});
  const float* src = plain.const_data_ptr<float>();
  float* dst = packed.mutable_data_ptr<float>();
  for (std::int64_t k = 0; k < conv.k; ++k) {
    for (std::int64_t member = 0; member < group; ++member) {
      for (std::int64_t tap = 0; tap < taps; ++tap, ++src)
        dst[((k / lanes * taps + tap) * group + member) * lanes + k % lanes] = *src;
    }
  }
  return {packed, pad_bias(layer.bias, blocks * lanes)};
}

std::int64_t packed_depthwise_floats(const ConvProblem& conv, Layout layout) {
  const std::int64_t channels = layout == Layout::kNhwc ? conv.c : channel_blocks(conv.c) * kBlock;
  return channels * (conv.r * conv.s * conv.c / conv.groups + 1);  // 1: the bias
}

Algorithm make_depthwise(const DepthwiseAlgorithm& depthwise) {
  Algorithm algorithm;
  algorithm.name = depthwise.name;
  algorithm.version = depthwise.version;
  algorithm.rounding = 1;
  algorithm.offer = [depthwise](const Problem& problem, const Device&) {
    return offer(depthwise, problem);
  };
  algorithm.prepare = [depthwise](const Problem& problem, const Primitive& primitive,
                                  const Device&) { return prepare(depthwise, problem, primitive); };
  return with_backward_data(std::move(algorithm));
}

}  // namespace torchalgo::cpu
