// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo {

/// A tensor of the data flow. It is written once.
struct Value {
  std::string name;                 // unique in the graph; the front end's name for it
  std::vector<std::int64_t> sizes;  // logical; empty if unknown
  std::optional<DType> dtype;       // nullopt: not floating point, or unknown
  int producer = -1;                // node, or -1 for an input of the graph
  bool operator==(const Value&) const = default;
};

/// One op of the data flow. Weights are not values: the problem holds their shape, the front end
/// holds their data.
struct Node {
  std::string name;  // "layer1.0.conv1", a repeated call "layer1.0.conv1#1": on disk, in plans
  std::string kind;  // the front end's op, "aten::conv2d"
  std::vector<int> inputs;         // values: data inputs in call order
  std::vector<int> outputs;        // values
  std::optional<Problem> problem;  // nullopt: opaque, so the cost is 0
  std::string note;                // why a node that looks plannable is opaque
  /// True for an opaque node that reads the sizes, the type or the device of its inputs and none of
  /// their elements. It takes its inputs in any layout.
  bool reads_shape_only = false;
  /// The layouts in which an opaque node reads its inputs and makes its results. A permute is a
  /// view: [n, c, h, w] in nhwc is [n, h, w, c] in plain memory.
  Layout reads = Layout::kNchw, makes = Layout::kNchw;
  bool operator==(const Node&) const = default;
};

/// The data flow of a model in topological order.
struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<int> inputs;            // values
  std::vector<Layout> input_layouts;  // as the caller passes them: kNchw or kNhwc
  std::vector<int> outputs;           // values; the caller gets them in nchw
  bool operator==(const Graph&) const = default;
};

/// The version of structure_hash. Raise it when the importer names or groups the nodes of a model
/// otherwise than before: see docs/decisions/0016.
inline constexpr int kStructureVersion = 4;

/// The first version of structure_hash whose plans know the layouts of opaque nodes.
inline constexpr int kFirstWithLayouts = 3;

/// Returns a hash of names, kinds, problems and data flow as 16 hex digits. Weights do not enter. A
/// plan of an older version has the hash of that version. It equals the hash of `graph` in that
/// version if the importer still makes the same graph of the model.
[[nodiscard]] std::string structure_hash(const Graph& graph, int version = kStructureVersion);

/// Returns true for an opaque node that reads or makes another layout than nchw.
[[nodiscard]] bool has_own_layouts(const Node& node);

/// Returns the layouts that the node reads and makes, such as "nhwc->nchw".
[[nodiscard]] std::string layouts_text(const Node& node);

/// Returns the nodes that read each value, once per use, in node order.
[[nodiscard]] std::vector<std::vector<int>> readers_of(const Graph& graph);

/// Checks that `graph` is well formed.
/// @throws InternalError  if an index is out of range, a value is used before its definition, or a
/// name is used twice.
void check_graph(const Graph& graph);

}  // namespace torchalgo
