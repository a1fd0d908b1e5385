// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/depthwise_args.h"
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

Packed pack(const Problem& problem, const Primitive& primitive, const Weights& weights) {
  return pack_depthwise(std::get<ConvProblem>(problem), primitive.src, weights);
}

std::int64_t packed_bytes(const Problem& problem, const Primitive& primitive) {
  return packed_depthwise_floats(std::get<ConvProblem>(problem), primitive.src) *
         std::int64_t{sizeof(float)};
}

using Kernel = decltype(&kernels::default_isa::run_depthwise);

at::Tensor run(Kernel kernel, const Call& call) {
  const auto& conv = std::get<ConvProblem>(call.problem);
  kernels::Depthwise args = depthwise_args(conv, call.primitive.src);
  args.src = call.src[0].const_data_ptr<float>();
  args.weights = call.packed[0].const_data_ptr<float>();
  args.bias = call.packed[1].const_data_ptr<float>();
  if (call.residual.defined()) args.residual = call.residual.const_data_ptr<float>();
  args.dst = call.dst.mutable_data_ptr<float>();
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
  algorithm.version = 3;
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
