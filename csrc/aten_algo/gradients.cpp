// SPDX-License-Identifier: BSD-3-Clause
#include "provider/gradients.h"
#include "provider/epilogue.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

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

// Does what batch_norm_step does, with one kernel where that has several. torch has these
// operations on CUDA only, for SyncBatchNorm.
at::Tensor cuda_batch_norm_step(const BatchNormProblem& norm, std::span<const at::Tensor> src,
                                const LayerWeights& weights) {
  if (norm.step == BatchNormStep::kMoments) {
    const auto [mean, var] = at::batch_norm_update_stats(src[0], {}, {}, /*momentum=*/0);
    return at::stack({mean, var}).view({2, -1, 1, 1});
  }
  const bool is_forward = norm.step == BatchNormStep::kNormalize;
  const at::Tensor& x = src[is_forward ? 0 : 1];
  const at::Tensor moments = src[is_forward ? 1 : 2].flatten(1);
  const at::Tensor mean = moments[0], inverse = (moments[1] + norm.epsilon).rsqrt();
  const auto result = [&] {
    return at::batch_norm_elemt(x, weights.weights, weights.bias, mean, inverse, norm.epsilon);
  };
  if (is_forward) return result();
  const at::Tensor diff =
      norm.activation ? activation_gradient(src[0], result(), *norm.activation) : src[0];
  if (norm.step == BatchNormStep::kGradientSums) {
    // The gradients of weight and bias would be the same sums, but torch gives them for a batch
    // norm with a weight only.
    const auto [sum, product, of_weights, of_bias] =
        at::batch_norm_backward_reduce(diff, x, mean, inverse, weights.weights, /*input_g=*/true,
                                       /*weight_g=*/false, /*bias_g=*/false);
    return at::stack({sum, product * inverse}).view({2, -1, 1, 1});
  }
  const at::Tensor sums = src[3].flatten(1);
  const at::Tensor count = at::full({1}, norm.n * norm.h * norm.w, x.options().dtype(at::kInt));
  return at::batch_norm_backward_elemt(diff, x, mean, inverse, weights.weights, sums[0],
                                       sums[1] / inverse, count);
}

at::Tensor compute(const BatchNormProblem& norm, std::span<const at::Tensor> src,
                   const KernelArgs& args) {
  const LayerWeights weights = args.packed.empty() ? LayerWeights() : args.packed[0];
  return src[0].is_cuda() ? cuda_batch_norm_step(norm, src, weights)
                          : batch_norm_step(norm, src, weights);
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
  const auto offer = [name, what](const Problem& problem, const Device& device) -> Offer {
    if (!std::holds_alternative<P>(problem)) return {{}, "runs " + std::string(what) + " only"};
    if (!epilogue_of(problem).empty()) return {{}, "applies nothing to its result"};
    // The other gradients have kernels of our own in bf16.
    const bool has_bf16 = std::holds_alternative<PoolGradientProblem>(problem);
    return has_bf16 ? offer_with_bf16(name, problem, device) : offer_strided(name);
  };
  return strided_algorithm<P>(name, offer,
                              [](const P& own, const Primitive& primitive, const KernelArgs& args) {
                                return compute(own, strided_inputs(primitive, args), args);
                              });
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
