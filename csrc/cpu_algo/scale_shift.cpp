// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/scale_shift.h"

#include <ATen/Parallel.h>
#include <ATen/ops/constant_pad_nd.h>

#include "base/error.h"
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
                   {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
}

/// Packs scale and shift with zeros in the pad lanes, so that pad lanes of dst become zero.
Packed pack_scale_shift(const Problem& problem, Layout layout, const Weights& weights) {
  const std::int64_t c = std::get<ScaleShiftProblem>(problem).c;
  TORCHALGO_CHECK(weights[0].weights.numel() == c && weights[0].bias.numel() == c,
                  "TA4302 scale_shift: got {} scales and {} shifts, expected {} of each ({})",
                  weights[0].weights.numel(), weights[0].bias.numel(), c, to_string(problem));
  const std::int64_t block = block_size(layout);
  const std::int64_t pad = (c + block - 1) / block * block - c;
  const auto padded = [pad](const at::Tensor& tensor) {
    return at::constant_pad_nd(tensor.reshape({-1}).to(at::kFloat), {0, pad}).contiguous();
  };
  return {{padded(weights[0].weights), padded(weights[0].bias)}};
}

struct Kernels {
  decltype(&kernels::default_isa::run_scale_shift) run;
  ClearPadLanes clear_pad_lanes;
};

Kernel prepare_scale_shift(const Kernels& kernels, const Problem& problem,
                           const Primitive& primitive) {
  const auto& affine = std::get<ScaleShiftProblem>(problem);
  const auto activation = only_activation(affine.epilogue);
  TORCHALGO_ASSERT(activation.has_value());
  const Layout layout = primitive.src;
  const LaneShape shape = lane_shape(layout, affine.n, affine.c);
  const std::int64_t n = affine.n, c = affine.c, pixels = affine.h * affine.w;
  kernels::ScaleShift sizes = {};
  sizes.pixels = pixels;
  sizes.lanes = shape.lanes;
  sizes.periods = shape.groups / n;
  sizes.activation = *activation;
  const std::int64_t block = block_size(layout);
  return {
      .problem = problem,
      .primitive = primitive,
      .run =
          [=](const KernelArgs& args) {
            kernels::ScaleShift part = sizes;
            part.src = floats(args.src[0]);
            part.scale = floats(args.packed[0].weights);
            part.shift = floats(args.packed[0].bias);
            part.dst = args.dst.mutable_data_ptr<float>();
            at::parallel_for(
                0, shape.groups * pixels, grain_of(shape.lanes),
                [&](std::int64_t begin, std::int64_t end) { kernels.run(part, begin, end); });
            if (!kernels::keeps_zero(part.activation)) {
              zero_pad_lanes(kernels.clear_pad_lanes, args.dst, layout, n, c, pixels);
            }
            return args.dst;
          },
      .pack = [=](const Weights& weights) { return pack_scale_shift(problem, layout, weights); },
      .packed_bytes =
          [=] { return 2 * ((c + block - 1) / block * block) * std::int64_t{sizeof(float)}; }};
}

}  // namespace

Algorithm scale_shift(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.scale_shift";
  algorithm.version = 4;
  algorithm.rounding = 1;
  algorithm.offer = offer_scale_shift;
  algorithm.prepare = [kernels = Kernels{TORCHALGO_PICK_KERNEL(isa, run_scale_shift),
                                         TORCHALGO_PICK_KERNEL(isa, clear_pad_lanes)}](
                          const Problem& problem, const Primitive& primitive, const Device&) {
    return prepare_scale_shift(kernels, problem, primitive);
  };
  algorithm.packs_for_all_sizes = true;
  return algorithm;
}

}  // namespace torchalgo::cpu
