// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/with_tensors.h"

#include <ATen/Parallel.h>

#include <memory>
#include <utility>

#include "provider/memory.h"

namespace torchalgo::cpu {
namespace {

// Returns null for a tensor that is undefined.
const float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

at::Tensor contiguous_floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kFloat).contiguous() : tensor;
}

// Returns memory for what is packed, or the model's own tensor if `count` is 0. In training,
// weights are packed in each run, and the page faults of new memory would take as long as the
// packing.
at::Tensor memory_for(std::int64_t count, const at::Tensor& own) {
  return count > 0 ? empty_reused({count}, {1}, at::kFloat, at::kCPU) : own;
}

bool makes_weights(const Problem& problem) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  return conv != nullptr && conv->direction == Direction::kBackwardFilter;
}

Packed pack(const StandaloneKernel& kernel, const LayerWeights& layer, bool has_bias) {
  const at::Tensor weights = contiguous_floats(layer.weights);
  const at::Tensor bias = has_bias ? contiguous_floats(layer.bias) : at::Tensor();
  LayerWeights packed = {memory_for(kernel.weight_floats, weights),
                         memory_for(kernel.bias_floats, bias)};
  if (kernel.pack) {
    const auto floats_to = [](const at::Tensor& to) {
      return to.defined() ? to.mutable_data_ptr<float>() : nullptr;
    };
    kernel.pack({floats_of(weights), floats_of(bias)}, floats_to(packed.weights),
                floats_to(packed.bias), torch_threads());
  }
  return {std::move(packed)};
}

at::Tensor run(const StandaloneKernel& kernel, const KernelArgs& args) {
  const LayerWeights packed = args.packed.empty() ? LayerWeights() : args.packed[0];
  kernel.run({.src = floats_of(args.src[0]),
              .diff_dst = args.src.size() > 1 ? floats_of(args.src[1]) : nullptr,
              .weights = floats_of(packed.weights),
              .bias = floats_of(packed.bias),
              .residual = floats_of(args.residual),
              .dst = args.dst.mutable_data_ptr<float>(),
              .workspace = args.workspace},
             torch_threads());
  return args.dst;
}

}  // namespace

Threads torch_threads() {
  return {[](void*, std::int64_t count, std::int64_t grain, Threads::Body call, const void* body) {
    at::parallel_for(0, count, grain,
                     [&](std::int64_t begin, std::int64_t end) { call(body, begin, end); });
  }};
}

Kernel with_tensors(StandaloneKernel kernel, const Problem& problem, Primitive primitive,
                    std::function<Work()> least_work) {
  primitive.workspace_bytes = kernel.workspace_bytes;
  const auto shared = std::make_shared<const StandaloneKernel>(std::move(kernel));
  Kernel made = {.problem = problem,
                 .primitive = std::move(primitive),
                 .run = [shared](const KernelArgs& args) { return run(*shared, args); },
                 .least_work = std::move(least_work)};
  if (weight_sizes(problem).empty() || makes_weights(problem)) return made;
  made.pack = [shared, has_bias = !bias_sizes(problem).empty()](const Weights& weights) {
    return pack(*shared, weights[0], has_bias);
  };
  made.packed_bytes = [shared] {
    return (shared->weight_floats + shared->bias_floats) * std::int64_t{sizeof(float)};
  };
  return made;
}

}  // namespace torchalgo::cpu
