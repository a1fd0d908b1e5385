// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// A part of a graph that a rule replaces: what computes the result of `last` from `reads`.
struct GraphPart {
  script::Node last;
  std::vector<script::Value> reads;
};

/// Replaces parts of a graph. Nothing is replaced where a tensor of the part is written in place:
/// one of `reads`, the result, or a tensor between.
///
/// @param find   Node -> std::optional<P>, where P is a GraphPart or derived from it. It returns
/// the
///               part that the node ends, or nullopt. It gets each node of the outermost block.
/// @param build  (const P&, const Builder&) -> Value. It inserts nodes, in front of `last`, and
///               returns what takes the place of the result, or null if nothing changed.
/// @return  true if the graph changed. The nodes of the parts stay, as dead code.
template <typename Find, typename Build>
bool replace_each(const script::Graph& graph, const Find& find, const Build& build) {
  std::optional<script::Writes> writes;  // of the graph before the first change
  bool is_changed = false;
  for (const script::Node node : graph.nodes()) {
    const auto part = find(node);
    if (!part) continue;
    if (!writes) writes.emplace(graph);
    const script::Value result = part->last.output();
    if (writes->has_any(result, part->reads)) continue;
    const script::Value made = build(*part, script::Builder(part->last));
    if (!made) continue;
    if (made != result) result.replace_uses(made);
    is_changed = true;
  }
  return is_changed;
}

/// Does what replace_each() does, and removes dead code.
template <typename Find, typename Build>
bool rewrite_each(const script::Graph& graph, const Find& find, const Build& build) {
  if (!replace_each(graph, find, build)) return false;
  graph.remove_dead_code();
  return true;
}

}  // namespace torchalgo
