// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "simplify/shape_proofs.h"
#include "torchscript/graph_view.h"

namespace torchalgo {

/// Inserts nodes that compute values of a graph in another form. It reads only tensors that nobody
/// writes to. Nodes that are not used in the end are dead code.
class VectorImages {
 public:
  /// @param seen  the tensors that a run of `graph` makes.
  VectorImages(script::Graph graph, const SeenTensors& seen)
      : graph_(std::move(graph)), proofs_(seen), writes_(graph_) {}

  /// Returns a tensor [n, c, 1, 1] whose elements have the order of those of `value`, a tensor
  /// [n, ...]. Returns null if all dimensions but the batch are not proven to be fixed.
  [[nodiscard]] script::Value as_image(script::Value value);

  /// Returns the softmax over two parts of the channels of `logits`, [n, 2 c, h, w], if a
  /// convolution with constant weights can compute it.
  [[nodiscard]] script::Value softmax_of_two(script::Value logits);

  /// Returns the same for logits [n, c, h, w] in two tensors; the result is [n, 2 c, h, w].
  [[nodiscard]] script::Value softmax_of_two(script::Value a, script::Value b);

  /// Returns channels `begin` to `begin + count` of a tensor of rank 4.
  [[nodiscard]] script::Value channels(script::Value whole, std::int64_t begin, std::int64_t count,
                                       script::Node before);

  /// Inserts an op whose result has these sizes in the run and the type of `like`.
  [[nodiscard]] script::Value insert(const char* kind, const std::vector<script::Argument>& inputs,
                                     const script::Builder& at, script::Value like,
                                     ShapeProofs::Sizes sizes);

  /// Inserts a copy of an op in front of it that reads `src` instead of its first input.
  [[nodiscard]] script::Value insert_like(script::Node op, script::Value src);

  [[nodiscard]] bool is_never_written(script::Value value) const;
  [[nodiscard]] const ShapeProofs& proofs() const { return proofs_; }
  void note_same(script::Value made, script::Value old);

 private:
  struct Logits {
    script::Node conv = nullptr;
    at::Tensor weight, bias;
  };
  [[nodiscard]] script::Value find_image(script::Value value);
  [[nodiscard]] script::Value image_of_source(script::Node node);
  [[nodiscard]] script::Value convolution_for(script::Node linear, script::Value src);
  [[nodiscard]] script::Value joined_image(script::Node cat);
  [[nodiscard]] script::Value softmax_image(script::Node softmax);
  [[nodiscard]] static Logits logits_of(script::Value value);
  [[nodiscard]] script::Value insert_sigmoid(const Logits& a, const Logits& b);

  script::Graph graph_;
  ShapeProofs proofs_;
  script::Writes writes_;  // as before the first change, which adds no writers
  std::unordered_map<script::Value, script::Value> images_;
};

}  // namespace torchalgo
