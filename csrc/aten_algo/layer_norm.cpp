// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/strided.h"
#include "provider/channel_norm.h"

namespace torchalgo::aten {
namespace {

Offer offer_layer_norm(const Problem& problem, const Device&) {
  if (!std::holds_alternative<LayerNormProblem>(problem))
    return {{}, "runs norms over channels only"};
  return offer_strided("aten.layer_norm");
}

at::Tensor run_layer_norm(const LayerNormProblem& problem, const Primitive&,
                          const KernelArgs& args) {
  const LayerWeights& layer = args.packed[0];
  return channel_norm(problem.kind, args.src[0], layer.weights, layer.bias, problem.epsilon, 1);
}

}  // namespace

Algorithm layer_norm() {
  return strided_algorithm<LayerNormProblem>("aten.layer_norm", offer_layer_norm, run_layer_norm);
}

}  // namespace torchalgo::aten
