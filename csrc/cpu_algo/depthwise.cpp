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

using RunDepthwise = decltype(&kernels::default_isa::run_depthwise);

Kernel prepare(RunDepthwise run, const Problem& problem, const Primitive& primitive) {
  const auto& conv = std::get<ConvProblem>(problem);
  const kernels::Depthwise geometry = depthwise_args(conv, primitive.src);
  // Some 10 us of work per thread, else its start costs more than it saves.
  constexpr std::int64_t kLeastWork = 300'000;
  const std::int64_t grain =
      kLeastWork / (geometry.q * geometry.pixel * conv.r * conv.s * geometry.group) + 1;
  const std::int64_t tasks = conv.n * geometry.blocks * geometry.p;
  return {.problem = problem,
          .primitive = primitive,
          .run =
              [=](const KernelArgs& args) {
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
          .pack = [conv, layout = primitive.src](
                      const Weights& weights) { return pack_depthwise(conv, layout, weights[0]); },
          .packed_bytes =
              [conv, layout = primitive.src] {
                return packed_depthwise_floats(conv, layout) * std::int64_t{sizeof(float)};
              },
          .least_work = [=] { return direct_work(problem, primitive); }};
}

Algorithm make_row(const char* name, decltype(Algorithm::offer) offer, RunDepthwise run) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.rounding = 1;
  algorithm.offer = std::move(offer);
  algorithm.prepare = [run](const Problem& problem, const Primitive& primitive, const Device&) {
    return prepare(run, problem, primitive);
  };
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
