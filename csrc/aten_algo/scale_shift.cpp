// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/zeros.h>

#include "aten_algo/strided.h"
#include "provider/kernel.h"
#include "provider/weights.h"

namespace torchalgo::aten {
namespace {

// batch_norm divides by sqrt(variance + epsilon) and needs epsilon > 0. These two constants are
// exact in every dtype down to bfloat16, and their sum is one.
constexpr double kEpsilon = 1.0 / 256.0;
constexpr double kVariance = 1.0 - kEpsilon;

Offer offer_scale_shift(const Problem& problem, const Device& device) {
  const auto* scale_shift = std::get_if<ScaleShiftProblem>(&problem);
  if (scale_shift == nullptr) return {{}, "runs x * scale + shift only"};
  if (!scale_shift->epilogue.empty()) return {{}, "ATen fuses nothing after x * scale + shift"};
  return offer_with_bf16("aten.scale_shift", problem, device);
}

// Packs scale and shift, then the mean and the variance that batch_norm also needs.
Packed pack_scale_shift(const ScaleShiftProblem& scale_shift, const Weights& weights) {
  const auto options =
      at::TensorOptions().dtype(scalar_type(scale_shift.dtype)).device(weights[0].weights.device());
  const at::Tensor zeros = at::zeros(scale_shift.c, options);
  const at::Tensor& shift = weights[0].bias;
  return {{weights[0].weights.contiguous(), shift.defined() ? shift.contiguous() : zeros},
          {zeros, at::full(scale_shift.c, kVariance, options)}};
}

at::Tensor run_scale_shift(const Primitive& primitive, const KernelArgs& args) {
  const auto& [scale, shift] = args.packed[0];
  const auto& [mean, variance] = args.packed[1];
  const at::Tensor dst = std::get<0>(
      at::native_batch_norm(to_strided(args.src[0], primitive.src), scale, shift, mean, variance,
                            /*training=*/false, /*momentum=*/0.0, kEpsilon));
  return to_strided(dst, primitive.dst);
}

Kernel prepare_scale_shift(const Problem& problem, const Primitive& primitive, const Device&) {
  const auto& scale_shift = std::get<ScaleShiftProblem>(problem);
  return {.problem = problem,
          .primitive = primitive,
          .run = [primitive](const KernelArgs& args) { return run_scale_shift(primitive, args); },
          .pack = [scale_shift](
                      const Weights& weights) { return pack_scale_shift(scale_shift, weights); },
          // Only mean and variance take memory; scale and shift are the model's own tensors.
          .packed_bytes = [problem] { return 2 * plain_weight_bytes(problem); },
          .packing = to_string(primitive),
          .makes_dst = true};
}

}  // namespace

Algorithm scale_shift() {
  return {.name = "aten.scale_shift",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_scale_shift,
          .prepare = prepare_scale_shift,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
