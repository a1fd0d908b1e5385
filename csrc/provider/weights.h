// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "ir/problem.h"

namespace torchalgo {

/// The constants of one layer. In a model, these are kcrs weights and a bias, or scale and shift.
/// For a kernel, they are the packed form of these. A tensor is undefined if the layer has no such
/// constant.
struct LayerWeights {
  at::Tensor weights;
  at::Tensor bias;
};

/// The constants of a problem as the model has them: one entry for each of its layers_of().
using Weights = std::vector<LayerWeights>;

/// The packed constants of a problem, as a kernel reads them. They are never written to disk.
using Packed = std::vector<LayerWeights>;

/// Calls visit(tensor) for the weights and the bias of each layer, undefined ones among them.
template <class Layers, class Visit>
void for_each_tensor(Layers& layers, const Visit& visit) {
  for (auto& layer : layers) {
    visit(layer.weights);
    visit(layer.bias);
  }
}

/// Makes weights of zeros for all layers of `problem`, on the CPU.
[[nodiscard]] Weights zero_weights(const Problem& problem);

/// Returns the bytes of the weights of `problem` as the model has them, without the bias.
[[nodiscard]] std::int64_t plain_weight_bytes(const Problem& problem);

/// Returns the bytes of `packed` that do not share memory with `plain`, including oneDNN's own
/// tensors.
[[nodiscard]] std::int64_t held_bytes(const Packed& packed, const Weights& plain);

/// Returns torch's name for a compute type; kTf32 is stored as float.
[[nodiscard]] at::ScalarType scalar_type(DType dtype);

}  // namespace torchalgo
