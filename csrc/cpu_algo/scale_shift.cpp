// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/scale_shift.h"

#include <functional>
#include <string>

#include "base/error.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

Offer offer_scale_shift(const Problem& problem, const Device&) {
  const auto* scale_shift = std::get_if<ScaleShiftProblem>(&problem);
  if (scale_shift == nullptr) return {{}, "needs a scale-shift"};
  if (!only_activation(scale_shift->epilogue)) {
    return {{}, "needs at most one activation to follow"};
  }
  return offer_f32("cpu.scale_shift", scale_shift->dtype,
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16});
}

PlainKernel bind_scale_shift(const std::string& isa, const Problem& problem,
                             const Primitive& primitive, const Device& device) {
  const auto& affine = std::get<ScaleShiftProblem>(problem);
  const auto activation = only_activation(affine.epilogue);
  TORCHALGO_ASSERT(activation.has_value());
  const Layout layout = primitive.src;
  const auto run = is_typed(layout) ? TORCHALGO_PICK_BF16_KERNEL(bf16_isa_beside(isa, device), isa,
                                                                 run_scale_shift_bf16)
                                    : TORCHALGO_PICK_KERNEL(isa, run_scale_shift);
  const auto clear_pad_lanes = TORCHALGO_PICK_KERNEL(isa, clear_pad_lanes);
  const LaneShape shape = lane_shape(layout, affine.n, affine.c);
  const std::int64_t n = affine.n, c = affine.c, pixels = affine.h * affine.w;
  kernels::ScaleShift sizes = {};
  sizes.pixels = pixels;
  sizes.lanes = shape.lanes;
  sizes.periods = shape.groups / n;
  sizes.activation = *activation;
  const std::int64_t block = block_size(layout);
  const std::int64_t padded = (c + block - 1) / block * block;
  return {.packed = {{padded, padded}},
          .packing = std::string(to_string(untyped(layout))),
          // Zeros in the pad lanes make those of dst zero.
          .pack =
              [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                  const Threads&) {
                pad_bias(model[0].weights, c, to[0].weights, padded);
                pad_bias(model[0].bias, c, to[0].bias, padded);
              },
          .run =
              [=](const RunArgs& args, const Threads& threads) {
                kernels::ScaleShift part = sizes;
                part.src = args.src[0];
                part.scale = args.weights[0].weights;
                part.shift = args.weights[0].bias;
                part.dst = args.dst;
                parallel_for(threads, shape.groups * pixels, grain_of(shape.lanes), run, part);
                if (!kernels::keeps_zero(part.activation)) {
                  zero_pad_lanes(clear_pad_lanes, args.dst, layout, n, c, pixels, threads);
                }
              }};
}

}  // namespace

Algorithm scale_shift(const std::string& isa) {
  return with_bf16_if_fast({.name = "cpu.scale_shift",
                            .version = 5,
                            .rounding = 1,
                            .offer = offer_scale_shift,
                            .bind = std::bind_front(bind_scale_shift, isa)});
}

}  // namespace torchalgo::cpu
