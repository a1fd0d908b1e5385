// SPDX-License-Identifier: BSD-3-Clause
#include "provider/with_tensors.h"

#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/product.h"
#include "provider/call_threads.h"
#include "provider/kernel.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

using cpu::LayerPointers;
using cpu::PackedFloats;
using cpu::PackedPointers;
using cpu::PlainKernel;

// Returns null for a tensor that is undefined. Its elements need not be floats: see as_bf16().
const float* floats_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const float*>(tensor.const_data_ptr()) : nullptr;
}

LayerPointers pointers_to(const LayerWeights& layer) {
  return {floats_of(layer.weights), floats_of(layer.bias)};
}

// Returns the model's constant as contiguous floats; an undefined tensor if the layer has none.
at::Tensor constant_of(const at::Tensor& own, const std::vector<std::int64_t>& sizes,
                       const Problem& layer) {
  if (sizes.empty() || !own.defined()) return {};
  const std::int64_t count = product(sizes);
  TORCHALGO_CHECK(own.numel() == count,
                  "TA4302 torchalgo: got {} weights of a layer, expected {} ({})", own.numel(),
                  count, to_string(layer));
  return own.to(at::kFloat).contiguous();
}

Weights constants_of(const std::vector<Problem>& layers, const Weights& weights) {
  Weights model;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    model.push_back({constant_of(weights[i].weights, weight_sizes(layers[i]), layers[i]),
                     constant_of(weights[i].bias, bias_sizes(layers[i]), layers[i])});
  }
  return model;
}

// Returns memory for what is packed, or the model's own tensor if `count` is 0. In training,
// weights are packed in each run, and the page faults of new memory would take as long as the
// packing.
at::Tensor memory_for(std::int64_t count, const at::Tensor& own) {
  return count > 0 ? empty_reused({count}, {1}, at::kFloat, at::kCPU) : own;
}

Packed pack(const PlainKernel& kernel, const std::vector<Problem>& layers, const Weights& weights) {
  Weights model = constants_of(layers, weights);
  if (!kernel.pack) return model;
  Packed packed;
  std::vector<LayerPointers> from;
  std::vector<PackedPointers> to;
  for (const LayerWeights& layer : model) from.push_back(pointers_to(layer));
  for (const PackedFloats& floats : kernel.packed) {
    const LayerWeights own = packed.size() < model.size() ? model[packed.size()] : LayerWeights();
    packed.push_back({memory_for(floats.weights, own.weights), memory_for(floats.bias, own.bias)});
    const auto memory = [](std::int64_t count, const at::Tensor& tensor) {
      return count > 0 ? tensor.mutable_data_ptr<float>() : nullptr;
    };
    to.push_back(
        {memory(floats.weights, packed.back().weights), memory(floats.bias, packed.back().bias)});
  }
  kernel.pack(from, to, call_threads());
  return packed;
}

at::Tensor run(const PlainKernel& kernel, const KernelArgs& args) {
  c10::SmallVector<const float*, 128> src;
  for (const at::Tensor& tensor : args.src) src.push_back(floats_of(tensor));
  c10::SmallVector<LayerPointers, 16> weights;
  for (const LayerWeights& layer : args.packed) weights.push_back(pointers_to(layer));
  if (weights.empty()) weights.emplace_back();
  c10::SmallVector<const std::int64_t*, 8> strides;
  if (kernel.takes_strides) {
    for (const at::Tensor& tensor : args.src) strides.push_back(tensor.strides().data());
    strides.push_back(args.dst.strides().data());
  }
  kernel.run({.src = {src.data(), src.size()},
              .weights = {weights.data(), weights.size()},
              .residual = floats_of(args.residual),
              .dst = static_cast<float*>(args.dst.mutable_data_ptr()),
              .workspace = args.workspace,
              .strides = {strides.data(), strides.size()}},
             call_threads());
  return args.dst;
}

bool makes_weights(const Problem& problem) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  return conv != nullptr && conv->direction == Direction::kBackwardFilter;
}

Kernel with_tensors(PlainKernel plain, const Problem& problem, Primitive primitive) {
  primitive.workspace_bytes = plain.workspace_bytes;
  const auto kernel = std::make_shared<const PlainKernel>(std::move(plain));
  Kernel made = {.problem = problem,
                 .primitive = std::move(primitive),
                 .run = [kernel](const KernelArgs& args) { return run(*kernel, args); },
                 .least_work = kernel->least_work,
                 // What is not packed is the model's own, which fits every size.
                 .packing = kernel->packed.empty() ? "own" : kernel->packing};
  const std::vector<Problem> layers = layers_of(problem);
  const bool has_weights = std::any_of(layers.begin(), layers.end(), [](const Problem& layer) {
    return !weight_sizes(layer).empty();
  });
  if (!has_weights || makes_weights(problem)) return made;
  made.pack = [kernel, layers](const Weights& weights) { return pack(*kernel, layers, weights); };
  made.packed_bytes = [kernel] {
    std::int64_t floats = 0;
    for (const PackedFloats& layer : kernel->packed) floats += layer.weights + layer.bias;
    return floats * std::int64_t{sizeof(float)};
  };
  return made;
}

}  // namespace

void prepare_with_tensors(Algorithms& algorithms) {
  for (Algorithm& algorithm : algorithms) {
    if (!algorithm.bind) continue;
    algorithm.prepare = [bind = algorithm.bind](const Problem& problem, const Primitive& primitive,
                                                const Device& device) {
      return with_tensors(bind(problem, primitive, device), problem, primitive);
    };
  }
}

}  // namespace torchalgo
