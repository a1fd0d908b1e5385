// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Puts a torchalgo::channel_norm over dimension `dim` of `src` at the insert point of the graph.
///
/// @param scale, shift  [c], where c is the size of `dim`. An undefined shift is 0.
/// @return  the result.
torch::jit::Value* insert_channel_norm(torch::jit::Graph& graph, LayerNormKind kind,
                                       torch::jit::Value* src, const at::Tensor& scale,
                                       const at::Tensor& shift, double eps, std::int64_t dim);

/// Replaces norms over channels that a model writes down itself by torchalgo::channel_norm, which
/// import_graph can read:
/// - the layer norm (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps);
/// - the RMS norm x / sqrt(mean(x^2) + eps);
/// - the variance norm x / sqrt(var(x) + eps), where x keeps its mean.
///
/// The channels are dimension 1 or the last one. A product with one constant per channel, and a sum
/// with one, become part of the norm.
///
/// @param seen  the tensors that a run of `graph` makes.
/// @return  true if the graph changed. `seen` does not describe it any more in this case.
bool name_written_norms(std::shared_ptr<torch::jit::Graph>& graph, const SeenTensors& seen);

}  // namespace torchalgo
