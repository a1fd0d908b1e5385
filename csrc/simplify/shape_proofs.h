// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torchscript/graph_view.h"
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
  [[nodiscard]] const Sizes* sizes_seen(script::Value value) const;

  /// Notes that `made`, which is new in the graph, has these sizes in the run and the type of
  /// `like`.
  void note(script::Value made, script::Value like, Sizes sizes);

  /// Notes that the first dimension of `made` is always that of `like`.
  void note_batch(script::Value made, script::Value like) { batches_[made] = batch_of(like); }

  /// Returns true if the first dimensions of both tensors are equal.
  [[nodiscard]] bool have_same_batch(script::Value a, script::Value b) const;

  [[nodiscard]] bool is_floating(script::Value value) const;

  /// Returns true if both tensors have the same scalar type.
  [[nodiscard]] bool have_same_type(script::Value a, script::Value b) const;

  /// Returns true if the tensor is [n, c, 1, 1].
  [[nodiscard]] bool is_pooled(script::Value value) const;

  /// Returns true if `view` of a tensor whose sizes are fixed, except for the batch, makes another
  /// such tensor with the same batch.
  [[nodiscard]] bool keeps_batch(script::Node view) const;

  /// Returns true if `view` makes [n, c, h * w] of a tensor [n, c, h, w].
  [[nodiscard]] bool flattens_image(script::Node view) const;

  /// Returns true if `view` makes [?, c, ?, ?] of a tensor [n, c, t] for all numbers of tokens.
  [[nodiscard]] bool keeps_channels(script::Node view) const;

  /// Returns true if `view` makes [n, parts, c / parts, h, w] of a tensor [n, c, h, w].
  [[nodiscard]] bool splits_channels(script::Node view) const;

 private:
  struct Entry {
    std::optional<std::int64_t> constant;
    script::Value number;  // null for an entry of a constant list
  };
  [[nodiscard]] static std::vector<Entry> entries_of(script::Node view);
  [[nodiscard]] script::Value batch_of(script::Value value) const;
  [[nodiscard]] script::Value batch_source(script::Node node) const;
  [[nodiscard]] std::optional<std::int64_t> rank_seen(script::Value value) const;
  [[nodiscard]] bool find_pooled(script::Value value) const;
  [[nodiscard]] bool splits_behind_batch(script::Node unflatten) const;
  [[nodiscard]] bool is_proven(script::Node view, std::size_t i, const Entry& entry,
                               bool is_split) const;
  [[nodiscard]] bool are_proven(script::Node view, bool is_split) const;

  SeenTensors seen_;
  // The value whose first dimension is that of the key, as far up as is known.
  mutable std::unordered_map<script::Value, script::Value> batches_;
  mutable std::unordered_map<script::Value, bool> pooled_;
};

/// Returns true for view and reshape to a list of sizes, and for unflatten.
[[nodiscard]] bool is_reshape(script::Node node);

/// Returns true for a convolution with constant 1x1 filters and no padding.
[[nodiscard]] bool is_1x1(script::Node node);

/// Returns the constant argument `name` as a dimension of a tensor of `rank`, from 0 on. Returns
/// nullopt if the argument is no constant number.
[[nodiscard]] std::optional<std::int64_t> dim_argument(script::Node node, const char* name,
                                                       std::int64_t rank);

/// Returns true if the node is a transpose or a permute of a tensor of `rank` that swaps dimensions
/// `a` and `b`, a < b, and leaves the others where they are.
[[nodiscard]] bool swaps_dims(script::Node node, std::int64_t a, std::int64_t b, std::int64_t rank);

}  // namespace torchalgo
