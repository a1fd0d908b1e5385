// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/kernels/depthwise.h"
#include "cpu_algo/rows.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kBlock = 16;

Offer offer(const Problem& problem, const Device&) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refuse_conv(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  if (conv->groups != conv->c)
    return {{},
            fmt::format("needs groups equal to the {} channels, got {}", conv->c, conv->groups)};
  if (conv->k != conv->c) {
    return {{},
            fmt::format("needs one output channel per channel, got {} of {}", conv->k, conv->c)};
  }
  Offer offer;
  offer.primitives.push_back({"cpu.depthwise", Layout::kNChw16c, Layout::kNChw16c});
  // In nhwc the last group of 16 channels overlaps the one before it instead of being masked.
  if (conv->c >= kBlock)
    offer.primitives.push_back({"cpu.depthwise", Layout::kNhwc, Layout::kNhwc});
  return offer;
}

// The weights [c, 1, r, s] as [blocks, r, s, 16] or, for nhwc, [r, s, c]; the bias likewise.
Packed pack(const Problem& problem, const Primitive& primitive, const Weights& weights) {
  const auto& conv = std::get<ConvProblem>(problem);
  const bool is_nhwc = primitive.src == Layout::kNhwc;
  const std::int64_t lanes = is_nhwc ? conv.c : kBlock;
  const std::int64_t blocks = (conv.c + lanes - 1) / lanes;
  const std::int64_t taps = conv.r * conv.s;
  const at::Tensor plain = weights.weights.contiguous();
  const at::Tensor packed = at::zeros({blocks, taps, lanes}, at::kFloat);
  const float* src = plain.const_data_ptr<float>();
  float* dst = packed.mutable_data_ptr<float>();
  for (std::int64_t c = 0; c < conv.c; ++c) {
    for (std::int64_t tap = 0; tap < taps; ++tap)
      dst[(c / lanes * taps + tap) * lanes + c % lanes] = src[c * taps + tap];
  }
  return {packed, pad_bias(weights.bias, blocks * lanes)};
}

std::int64_t packed_bytes(const Problem& problem, const Primitive& primitive) {
  const auto& conv = std::get<ConvProblem>(problem);
  const std::int64_t channels =
      primitive.src == Layout::kNhwc ? conv.c : channel_blocks(conv.c) * kBlock;
  return channels * (conv.r * conv.s + 1) * std::int64_t{sizeof(float)};  // 1: the bias
}

using Kernel = decltype(&kernels::default_isa::run_depthwise);

at::Tensor run(Kernel kernel, const Call& call) {
  const auto& conv = std::get<ConvProblem>(call.problem);
  const bool is_nhwc = call.primitive.src == Layout::kNhwc;
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  kernels::Depthwise args;
  args.src = call.src[0].const_data_ptr<float>();
  args.weights = call.packed[0].const_data_ptr<float>();
  args.bias = call.packed[1].const_data_ptr<float>();
  if (call.residual.defined()) args.residual = call.residual.const_data_ptr<float>();
  args.dst = call.dst.mutable_data_ptr<float>();
  args.blocks = is_nhwc ? 1 : channel_blocks(conv.c);
  args.pixel = is_nhwc ? conv.c : kBlock;
  args.pad_lanes = is_nhwc ? 0 : args.blocks * kBlock - conv.c;
  args.h = conv.h;
  args.w = conv.w;
  args.p = dst[2];
  args.q = dst[3];
  args.r = conv.r;
  args.s = conv.s;
  args.stride_h = conv.stride_h;
  args.stride_w = conv.stride_w;
  args.pad_h = conv.pad_h;
  args.pad_w = conv.pad_w;
  args.dilation_h = conv.dilation_h;
  args.dilation_w = conv.dilation_w;
  args.activation = activation_of(conv.epilogue);
  // Some 10 us of work per thread, else its start costs more than it saves.
  constexpr std::int64_t kLeastWork = 300'000;
  const std::int64_t grain = kLeastWork / (args.q * args.pixel * conv.r * conv.s) + 1;
  at::parallel_for(0, conv.n * args.blocks * args.p, grain,
                   [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
  return call.dst;
}

}  // namespace

Algorithm depthwise(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.depthwise";
  algorithm.version = 2;
  algorithm.offer = &offer;
  algorithm.pack = &pack;
  algorithm.packed_bytes = &packed_bytes;
  algorithm.run = [kernel = TORCHALGO_PICK_KERNEL(isa, run_depthwise)](const Call& call) {
    return run(kernel, call);
  };
  algorithm.least_work = direct_work;
  return algorithm;
}

}  // namespace torchalgo::cpu
