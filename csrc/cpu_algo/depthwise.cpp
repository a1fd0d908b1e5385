// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/depthwise_args.h"
#include "cpu_algo/kernels/grouped.h"
#include "cpu_algo/rows.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kBlock = 16;

// In nhwc the last 16 channels overlap those before them instead of being masked.
Offer offer_layouts(const std::string& name, const ConvProblem& conv) {
  Offer offer;
  offer.primitives.push_back({name, Layout::kNChw16c, Layout::kNChw16c});
  if (conv.c >= kBlock) offer.primitives.push_back({name, Layout::kNhwc, Layout::kNhwc});
  return offer;
}

Offer offer_depthwise(const Problem& problem, const Device&) {
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
  return offer_layouts("cpu.depthwise", *conv);
}

Offer offer_grouped(const Problem& problem, const Device&) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refuse_conv(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  const std::int64_t width = conv->c / conv->groups;
  if (conv->k != conv->c || width < 2 || kBlock % width != 0) {
    return {{},
            fmt::format("needs groups of 2, 4, 8 or 16 channels and as many made of them, got {} "
                        "to {} in {}",
                        conv->c, conv->k, conv->groups)};
  }
  if (conv->r != 3 || conv->s != 3 || conv->dilation_h * conv->dilation_w != 1)
    return {{}, "needs a 3x3 filter without dilation"};
  if (conv->stride_h != conv->stride_w || conv->stride_w > 2)
    return {{}, fmt::format("needs stride 1 or 2, got {}x{}", conv->stride_h, conv->stride_w)};
  return offer_layouts("cpu.grouped", *conv);
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
  const std::int64_t grain = kLeastWork / (args.q * args.pixel * conv.r * conv.s * args.group) + 1;
  at::parallel_for(0, conv.n * args.blocks * args.p, grain,
                   [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
  return call.dst;
}

Algorithm make_row(const char* name, decltype(Algorithm::offer) offer, Kernel kernel) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.offer = std::move(offer);
  algorithm.pack = &pack;
  algorithm.packed_bytes = &packed_bytes;
  algorithm.run = [kernel](const Call& call) { return run(kernel, call); };
  algorithm.least_work = direct_work;
  return algorithm;
}

}  // namespace

Algorithm depthwise(const std::string& isa) {
  Algorithm row =
      make_row("cpu.depthwise", &offer_depthwise, TORCHALGO_PICK_KERNEL(isa, run_depthwise));
  row.version = 5;
  return row;
}

Algorithm grouped(const std::string& isa) {
  Algorithm row = make_row("cpu.grouped", &offer_grouped, TORCHALGO_PICK_KERNEL(isa, run_grouped));
  row.version = 2;
  return row;
}

}  // namespace torchalgo::cpu
