// SPDX-License-Identifier: BSD-3-Clause
#include "provider/gradients.h"

#include <ATen/TensorOperators.h>

#include <vector>

#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

std::vector<at::Tensor> strided_inputs(const Primitive& primitive, const KernelArgs& args) {
  std::vector<at::Tensor> inputs;
  inputs.reserve(args.src.size());
  for (const at::Tensor& tensor : args.src) inputs.push_back(to_strided(tensor, primitive.src));
  return inputs;
}

at::Tensor compute(const BatchNormProblem& norm, std::span<const at::Tensor> src,
                   const KernelArgs& args) {
  return batch_norm_step(norm, src, args.packed.empty() ? LayerWeights() : args.packed[0]);
}

at::Tensor compute(const ActivationGradientProblem& problem, std::span<const at::Tensor> src,
                   const KernelArgs&) {
  return activation_gradient(src[0], src[1], problem.activation);
}

at::Tensor compute(const PoolGradientProblem& problem, std::span<const at::Tensor> src,
                   const KernelArgs&) {
  return pool_gradient(problem.pool, src);
}

at::Tensor compute(const ChannelSumsProblem& problem, std::span<const at::Tensor> src,
                   const KernelArgs&) {
  return torchalgo::channel_sums(problem, src);
}

template <class P>
Algorithm row(std::string_view name, std::string_view what) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.runs_on_cuda = true;
  algorithm.is_fallback = true;
  algorithm.packs_for_all_sizes = true;
  algorithm.offer = [name, what](const Problem& problem, const Device&) -> Offer {
    if (!std::holds_alternative<P>(problem)) return {{}, "runs " + std::string(what) + " only"};
    if (!epilogue_of(problem).empty()) return {{}, "applies nothing to its result"};
    return offer_strided(name);
  };
  algorithm.prepare = [](const Problem& problem, const Primitive& primitive, const Device&) {
    Kernel kernel = {.problem = problem, .primitive = primitive, .makes_dst = true};
    kernel.run = [own = std::get<P>(problem), primitive](const KernelArgs& args) {
      return to_strided(compute(own, strided_inputs(primitive, args), args), primitive.dst);
    };
    if (!weight_sizes(problem).empty()) {
      kernel.pack = [](const Weights& weights) -> Packed { return weights; };
      kernel.packed_bytes = [] { return 0; };  // the model's own
    }
    return kernel;
  };
  return algorithm;
}

}  // namespace

Algorithm batch_norm() { return row<BatchNormProblem>("aten.batch_norm", "steps of batch norms"); }
Algorithm bwd_activation() {
  return row<ActivationGradientProblem>("aten.bwd_activation", "gradients of activations");
}
Algorithm bwd_pool() { return row<PoolGradientProblem>("aten.bwd_pool", "gradients of poolings"); }
Algorithm channel_sums() {
  return row<ChannelSumsProblem>("aten.channel_sums", "sums of channels");
}

}  // namespace torchalgo::aten
