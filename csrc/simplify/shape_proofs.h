// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Proves facts about sizes that hold for every input of a graph, not only for the one of the run.
/// The number of channels of an image is a fact about the weights, so the run shows it.
class ShapeProofs {
 public:
  using Sizes = std::vector<std::int64_t>;

  /// @param seen  the tensors that a run of the graph makes.
  explicit ShapeProofs(SeenTensors seen) : seen_(std::move(seen)) {}

  /// Returns the sizes in the run, or null if the value was not seen or had several sizes.
  [[nodiscard]] const Sizes* sizes_seen(const torch::jit::Value* value) const;

  /// Notes that `made`, which is new in the graph, has these sizes in the run and the type of
  /// `like`.
  void note(const torch::jit::Value* made, const torch::jit::Value* like, Sizes sizes);

  /// Notes that the first dimension of `made` is always that of `like`.
  void note_batch(const torch::jit::Value* made, const torch::jit::Value* like) {
    batches_[made] = batch_of(like);
  }

  /// Returns true if the first dimensions of both tensors are equal.
  [[nodiscard]] bool have_same_batch(const torch::jit::Value* a, const torch::jit::Value* b) const;

  [[nodiscard]] bool is_floating(const torch::jit::Value* value) const;

  /// Returns true if both tensors have the same scalar type.
  [[nodiscard]] bool have_same_type(const torch::jit::Value* a, const torch::jit::Value* b) const;

  /// Returns true if the tensor is [n, c, 1, 1].
  [[nodiscard]] bool is_pooled(const torch::jit::Value* value) const;

  /// Returns true if `view` of a tensor whose sizes are fixed, except for the batch, makes another
  /// such tensor with the same batch.
  [[nodiscard]] bool keeps_batch(const torch::jit::Node* view) const;

  /// Returns true if `view` makes [n, c, h * w] of a tensor [n, c, h, w].
  [[nodiscard]] bool flattens_image(const torch::jit::Node* view) const;

  /// Returns true if `view` makes [?, c, ?, ?] of a tensor [n, c, t] for all numbers of tokens.
  [[nodiscard]] bool keeps_channels(const torch::jit::Node* view) const;

  /// Returns true if `view` makes [n, parts, c / parts, h, w] of a tensor [n, c, h, w].
  [[nodiscard]] bool splits_channels(const torch::jit::Node* view) const;

 private:
  struct Entry {
    std::optional<std::int64_t> constant;
    const torch::jit::Value* number;  // null for an entry of a constant list
  };
  [[nodiscard]] static std::vector<Entry> entries_of(const torch::jit::Node* view);
  [[nodiscard]] const torch::jit::Value* batch_of(const torch::jit::Value* value) const;
  [[nodiscard]] const torch::jit::Value* batch_source(const torch::jit::Node* node) const;
  [[nodiscard]] std::optional<std::int64_t> rank_seen(const torch::jit::Value* value) const;
  [[nodiscard]] bool find_pooled(const torch::jit::Value* value) const;
  [[nodiscard]] bool splits_behind_batch(const torch::jit::Node* unflatten) const;
  [[nodiscard]] bool is_proven(const torch::jit::Node* view, std::size_t i, const Entry& entry,
                               bool is_split) const;
  [[nodiscard]] bool are_proven(const torch::jit::Node* view, bool is_split) const;

  SeenTensors seen_;
  // The value whose first dimension is that of the key, as far up as is known.
  mutable std::unordered_map<const torch::jit::Value*, const torch::jit::Value*> batches_;
  mutable std::unordered_map<const torch::jit::Value*, bool> pooled_;
};

/// Returns true for view and reshape to a list of sizes, and for unflatten.
[[nodiscard]] bool is_reshape(const torch::jit::Node* node);

/// Returns true for a convolution with constant 1x1 filters and no padding.
[[nodiscard]] bool is_1x1(const torch::jit::Node* node);

/// Returns the constant argument `name` as a dimension of a tensor of `rank`, from 0 on. Returns
/// nullopt if the argument is no constant number.
[[nodiscard]] std::optional<std::int64_t> dim_argument(const torch::jit::Node* node,
                                                       const char* name, std::int64_t rank);

/// Returns true if the node is a transpose or a permute of a tensor of `rank` that swaps dimensions
/// `a` and `b`, a < b, and leaves the others where they are.
[[nodiscard]] bool swaps_dims(const torch::jit::Node* node, std::int64_t a, std::int64_t b,
                              std::int64_t rank);

}  // namespace torchalgo
