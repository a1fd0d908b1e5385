// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "simplify/shape_proofs.h"

namespace torchalgo {

/// Inserts nodes that compute values of a graph in another form. It reads only tensors that nobody
/// writes to. Nodes that are not used in the end are dead code.
class VectorImages {
 public:
  /// @param seen  the tensors that a run of `graph` makes.
  VectorImages(std::shared_ptr<torch::jit::Graph> graph, const SeenTensors& seen)
      : graph_(std::move(graph)), proofs_(seen), aliases_(graph_) {}

  /// Returns a tensor [n, c, 1, 1] whose elements have the order of those of `value`, a tensor
  /// [n, ...]. Returns null if all dimensions but the batch are not proven to be fixed.
  [[nodiscard]] torch::jit::Value* as_image(torch::jit::Value* value);

  /// Returns the softmax over two parts of the channels of `logits`, [n, 2 c, h, w], if a
  /// convolution with constant weights can compute it.
  [[nodiscard]] torch::jit::Value* softmax_of_two(torch::jit::Value* logits);

  /// Returns the same for logits [n, c, h, w] in two tensors; the result is [n, 2 c, h, w].
  [[nodiscard]] torch::jit::Value* softmax_of_two(torch::jit::Value* a, torch::jit::Value* b);

  /// Returns channels `begin` to `begin + count` of a tensor of rank 4.
  [[nodiscard]] torch::jit::Value* channels(torch::jit::Value* whole, std::int64_t begin,
                                            std::int64_t count, torch::jit::Node* before);

  /// Inserts an op in front of `before`, whose name and source line it has.
  [[nodiscard]] torch::jit::Value* insert(const char* kind,
                                          const std::vector<torch::jit::NamedValue>& inputs,
                                          torch::jit::Node* before, const torch::jit::Value* like,
                                          ShapeProofs::Sizes sizes);

  /// Inserts a copy of an op in front of it that reads `src` instead of its first input.
  [[nodiscard]] torch::jit::Value* insert_like(torch::jit::Node* op, torch::jit::Value* src);

  [[nodiscard]] bool is_never_written(const torch::jit::Value* value) const;
  [[nodiscard]] const ShapeProofs& proofs() const { return proofs_; }
  void note_same(const torch::jit::Value* made, const torch::jit::Value* old);

 private:
  struct Logits {
    torch::jit::Node* conv = nullptr;
    at::Tensor weight, bias;
  };
  [[nodiscard]] torch::jit::Value* find_image(torch::jit::Value* value);
  [[nodiscard]] torch::jit::Value* image_of_source(torch::jit::Node* node);
  [[nodiscard]] torch::jit::Value* convolution_for(torch::jit::Node* linear,
                                                   torch::jit::Value* src);
  [[nodiscard]] torch::jit::Value* joined_image(torch::jit::Node* cat);
  [[nodiscard]] torch::jit::Value* softmax_image(torch::jit::Node* softmax);
  [[nodiscard]] static Logits logits_of(const torch::jit::Value* value);
  [[nodiscard]] torch::jit::Value* insert_sigmoid(const Logits& a, const Logits& b);
  [[nodiscard]] torch::jit::Value* insert_weight(const at::Tensor& weight,
                                                 const torch::jit::Value* like);

  std::shared_ptr<torch::jit::Graph> graph_;
  ShapeProofs proofs_;
  torch::jit::AliasDb aliases_;  // as before the first change, which adds no writers
  std::unordered_map<const torch::jit::Value*, torch::jit::Value*> images_;
};

}  // namespace torchalgo
