// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/layer_norm.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

kernels::LayerNorm sizes_of(const LayerNormProblem& norm, Layout layout) {
  const LaneShape image = lane_shape(layout, 1, norm.c);
  kernels::LayerNorm sizes = {};
  sizes.groups = image.groups;
  sizes.lanes = image.lanes;
  sizes.pixels = norm.h * norm.w;
  sizes.channels = norm.c;
  const auto channels = static_cast<double>(norm.c);
  sizes.is_about_mean = norm.kind != LayerNormKind::kRms;
  sizes.is_centered = norm.kind == LayerNormKind::kLayer;
  sizes.factor =
      norm.kind == LayerNormKind::kVariance ? static_cast<float>(channels / (channels - 1)) : 1.0F;
  sizes.epsilon = static_cast<float>(norm.epsilon);
  return sizes;
}

PlainKernel make_kernel(const LayerNormProblem& norm, Layout layout, std::string_view isa) {
  const kernels::LayerNorm sizes = sizes_of(norm, layout);
  const std::int64_t grain = grain_of(norm.c);
  return {
      .run = [=, pixels = norm.n * sizes.pixels, run = TORCHALGO_PICK_KERNEL(isa, run_layer_norm)](
                 const RunArgs& args, const Threads& threads) {
        kernels::LayerNorm call = sizes;
        call.src = args.src[0];
        call.scale = args.weights[0].weights;
        call.shift = args.weights[0].bias;
        call.dst = args.dst;
        parallel_for(threads, pixels, grain, run, call);
      }};
}

Offer offer_layer_norm(const Problem& problem, const Device&) {
  const auto* norm = std::get_if<LayerNormProblem>(&problem);
  if (norm == nullptr) return {{}, "needs a norm over channels"};
  return offer_f32("cpu.layer_norm", norm->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
}

}  // namespace

Algorithm layer_norm(const std::string& isa) {
  return {.name = "cpu.layer_norm",
          .version = 1,
          .rounding = 1,
          .offer = offer_layer_norm,
          .bind = [isa](const Problem& problem, const Primitive& primitive, const Device&) {
            return make_kernel(std::get<LayerNormProblem>(problem), primitive.src, isa);
          }};
}

}  // namespace torchalgo::cpu
