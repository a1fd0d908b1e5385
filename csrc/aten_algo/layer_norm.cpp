// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/layer_norm.h>

#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_layer_norm(const Problem& problem, const Device&) {
  if (!std::holds_alternative<LayerNormProblem>(problem)) return {{}, "runs layer norms only"};
  return offer_strided("aten.layer_norm");
}

// Runs ATen's layer norm. It normalizes over the last dimensions, so the channels are moved there
// and back.
at::Tensor run_layer_norm(const LayerNormProblem& problem, const Primitive& primitive,
                          const KernelArgs& args) {
  const at::Tensor last = args.src[0].permute({0, 2, 3, 1});
  const at::Tensor dst =
      at::layer_norm(last, problem.c, args.packed[0].weights, args.packed[0].bias, problem.epsilon);
  return to_strided(dst.permute({0, 3, 1, 2}), primitive.dst);
}

Kernel prepare_layer_norm(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [norm = std::get<LayerNormProblem>(problem), primitive](
                     const KernelArgs& args) { return run_layer_norm(norm, primitive, args); },
          .pack = [](const Weights& weights) -> Packed { return weights; },
          .packed_bytes = [] { return 0; },  // the model's own
          .makes_dst = true};
}

}  // namespace

Algorithm layer_norm() {
  return {.name = "aten.layer_norm",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_layer_norm,
          .prepare = prepare_layer_norm,
          .is_fallback = true,
          .packs_for_all_sizes = true};
}

}  // namespace torchalgo::aten
