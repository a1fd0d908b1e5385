// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <optional>
#include <string>
#include <vector>

#include "ir/problem.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// What a node computes, in the nouns of ir.
struct OpReading {
  std::optional<Problem> problem;
  std::vector<torch::jit::Value*> inputs;  // data inputs in the problem's order; empty if opaque
  std::string note;                        // an op of a kind that is planned, but not this one: why
  /// Nodes before it, read by nobody else, whose work the problem includes.
  std::vector<torch::jit::Node*> inner = {};
};

/// Reads one node of a frozen graph; weights must be constants, shapes those of `infos`. A kind
/// that is never planned gives an empty reading.
[[nodiscard]] OpReading read_op(const torch::jit::Node* node, const TensorInfos& infos);

/// Whether it is a convolution, transposed or not, under any of its names.
[[nodiscard]] bool is_convolution(const torch::jit::Node* node);

/// The constants of a node that read_op gave a problem, in the form that every row expects: weights
/// [k, c / groups, (t,) r, s], of a linear [k, c], scale and shift of a scale-shift or a layer
/// norm; undefined where there are none. They share the storage of the model's where these are
/// contiguous.
struct OpWeights {
  at::Tensor weights;
  at::Tensor bias;
};
[[nodiscard]] OpWeights weights_of(const torch::jit::Node* node, const Problem& problem);

}  // namespace torchalgo
