// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/strided.h"
#include "provider/channel_norm.h"
#include "provider/kernel.h"

namespace torchalgo::aten {
namespace {

Offer offer_layer_norm(const Problem& problem, const Device&) {
  if (!std::holds_alternative<LayerNormProblem>(problem))
    return {{}, "runs norms over channels only"};
  return offer_strided("aten.layer_norm");
}

at::Tensor run_layer_norm(const LayerNormProblem& problem, const Primitive& primitive,
                          const KernelArgs& args) {
  const LayerWeights& layer = args.packed[0];
  return to_strided(
      channel_norm(problem.kind, args.src[0], layer.weights, layer.bias, problem.epsilon, 1),
      primitive.dst);
}

Kernel prepare_layer_norm(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [norm = std::get<LayerNormProblem>(problem), primitive](
                     const KernelArgs& args) { return run_layer_norm(norm, primitive, args); },
          .pack = [](const Weights& weights) -> Packed { return weights; },
          .packed_bytes = [] { return 0; },  // the model's own
          .packing = to_string(primitive),
          .makes_dst = true};
}

}  // namespace

Algorithm layer_norm() {
  return {.name = "aten.layer_norm",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_layer_norm,
          .prepare = prepare_layer_norm,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
