// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

#include "ir/candidates.h"
#include "ir/graph.h"
#include "planner/layout_set.h"

namespace torchalgo::planner {

/// The producer and the readers of a value, as far as layouts are concerned.
struct ValueFlow {
  int producer = -1;             // node with a problem; -1: the layout is `fixed`
  Layout fixed = Layout::kNchw;  // of an input of the graph or an opaque node's result
  std::vector<int> readers;      // nodes with a problem, each once
  LayoutSet border = 0;  // read by the caller and by opaque nodes, unless these read the shape only
  std::optional<TransformProblem> shape;  // without from, to; nullopt: fixed layout
  bool has_blocked = true;  // false: no blocked layout, since its way back would lose the rank
};

/// Returns true for a gradient of weights, which has the order of the weights.
[[nodiscard]] bool is_weight_gradient(const Graph& graph, int value);

/// Returns one entry per value of the graph. A weights' gradient has no shape and no border,
/// because its layout is in the name of the primitive that computes it.
[[nodiscard]] std::vector<ValueFlow> trace_values(const Graph& graph);

/// The candidates that may be used, one list per node of the graph.
using CandidateLists = std::vector<std::vector<const Candidate*>>;

/// The layouts in which a candidate reads and writes around its chain.
struct ChainLayouts {
  std::array<Layout, 3> src = {};  // of the anchor's first, second, and further inputs
  Layout dst = Layout::kNchw;      // of the result, and of residuals
};

[[nodiscard]] ChainLayouts layouts_of(const Candidate& candidate);

/// Returns the layouts in which the node `covers[position]` reads `value` if a candidate with these
/// layouts computes the chain `covers`. The set is empty if the node takes the value from the
/// chain, which never writes it to memory.
[[nodiscard]] LayoutSet layouts_read(const Graph& graph, std::span<const int> covers, int position,
                                     const ChainLayouts& layouts, int value);

/// Returns, for each value, every layout in which some choice writes or reads it.
[[nodiscard]] std::vector<LayoutSet> layouts_at_values(const Graph& graph,
                                                       const std::vector<ValueFlow>& flow,
                                                       const CandidateLists& candidates);

}  // namespace torchalgo::planner
