// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/with_tensors.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <memory>
#include <utility>

namespace torchalgo::cpu {
namespace {

// Returns null for a tensor that is undefined.
const float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

at::Tensor contiguous_floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kFloat).contiguous() : tensor;
}

Packed pack(const StandaloneKernel& kernel, const LayerWeights& layer) {
  const at::Tensor weights = contiguous_floats(layer.weights);
  const at::Tensor bias = contiguous_floats(layer.bias);
  const at::Tensor packed = at::empty({kernel.weight_floats}, at::kFloat);
  const at::Tensor padded = at::empty({kernel.bias_floats}, at::kFloat);
  kernel.pack({floats_of(weights), floats_of(bias)}, packed.mutable_data_ptr<float>(),
              padded.mutable_data_ptr<float>(), torch_threads());
  return kernel.bias_floats == 0 ? Packed{packed} : Packed{packed, padded};
}

at::Tensor run(const StandaloneKernel& kernel, const KernelArgs& args) {
  kernel.run({.src = floats_of(args.src[0]),
              .weights = floats_of(args.packed[0]),
              .bias = args.packed.size() > 1 ? floats_of(args.packed[1]) : nullptr,
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
  return {.problem = problem,
          .primitive = std::move(primitive),
          .run = [shared](const KernelArgs& args) { return run(*shared, args); },
          .pack = [shared](const Weights& weights) { return pack(*shared, weights[0]); },
          .packed_bytes =
              [shared] {
                return (shared->weight_floats + shared->bias_floats) * std::int64_t{sizeof(float)};
              },
          .least_work = std::move(least_work)};
}

}  // namespace torchalgo::cpu
