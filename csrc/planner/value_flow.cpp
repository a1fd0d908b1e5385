// SPDX-License-Identifier: BSD-3-Clause
#include "planner/value_flow.h"

#include <algorithm>

#include "ir/transform_shape.h"

namespace torchalgo::planner {
namespace {

bool takes_from_chain(const Graph& graph, std::span<const int> covers, int position, int value) {
  return position > 0 && graph.values[value].producer == covers[position - 1];
}

// A problem that has "+add" without a chain reads its last input as the residual.
bool has_own_residual(const Node& node) { return has(epilogue_of(*node.problem), PostOp::kAdd); }

}  // namespace

bool is_weight_gradient(const Graph& graph, int value) {
  const int producer = graph.values[value].producer;
  if (producer < 0 || !graph.nodes[producer].problem) return false;
  const auto* conv = std::get_if<ConvProblem>(&*graph.nodes[producer].problem);
  return conv != nullptr && conv->direction == Direction::kBackwardFilter;
}

std::vector<ValueFlow> trace_values(const Graph& graph) {
  std::vector<ValueFlow> flow(graph.values.size());
  for (std::size_t v = 0; v < flow.size(); ++v) {
    const int producer = graph.values[v].producer;
    if (producer >= 0 && graph.nodes[producer].problem) flow[v].producer = producer;
    if (producer >= 0) flow[v].fixed = graph.nodes[producer].makes;
    if (!is_weight_gradient(graph, static_cast<int>(v)))
      flow[v].shape = transform_shape(graph.values[v]);
    flow[v].has_blocked = graph.values[v].sizes.size() == 4;
  }
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    // A value without a shape cannot change its layout, so every op reads it as it is.
    ValueFlow& input = flow[graph.inputs[i]];
    if (input.shape && i < graph.input_layouts.size()) input.fixed = graph.input_layouts[i];
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const int value : graph.nodes[n].inputs) {
      ValueFlow& read = flow[value];
      if (!graph.nodes[n].problem) {
        if (!graph.nodes[n].reads_shape_only) read.border |= set_of(graph.nodes[n].reads);
      } else if (read.readers.empty() || read.readers.back() != static_cast<int>(n)) {
        read.readers.push_back(static_cast<int>(n));
      }
    }
  }
  for (const int value : graph.outputs) {
    if (!is_weight_gradient(graph, value)) flow[value].border |= set_of(Layout::kNchw);
  }
  return flow;
}

ChainLayouts layouts_of(const Candidate& candidate) {
  const auto src = [&](std::size_t index) {
    return input_layout(candidate.problem, candidate.primitive, index);
  };
  return {{src(0), src(1), src(2)}, result_layout(candidate)};
}

LayoutSet layouts_read(const Graph& graph, std::span<const int> covers, int position,
                       const ChainLayouts& layouts, int value) {
  if (takes_from_chain(graph, covers, position, value)) return 0;
  if (position > 0) return set_of(layouts.dst);
  const Node& node = graph.nodes[covers[0]];
  const std::size_t residual = node.inputs.size() - (has_own_residual(node) ? 1 : 0);
  LayoutSet read = 0;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != value) continue;
    read |= set_of(i == residual ? layouts.dst : layouts.src[std::min<std::size_t>(i, 2)]);
  }
  return read;
}

std::vector<LayoutSet> layouts_at_values(const Graph& graph, const std::vector<ValueFlow>& flow,
                                         const CandidateLists& candidates) {
  std::vector<LayoutSet> at_value(flow.size(), 0);
  for (std::size_t v = 0; v < flow.size(); ++v) {
    at_value[v] = flow[v].border;
    if (flow[v].producer < 0) at_value[v] |= set_of(flow[v].fixed);
  }
  for (const auto& list : candidates) {
    for (const Candidate* candidate : list) {
      const ChainLayouts layouts = layouts_of(*candidate);
      for (int i = 0; i < static_cast<int>(candidate->covers.size()); ++i) {
        for (const int value : graph.nodes[candidate->covers[i]].inputs) {
          at_value[value] |= layouts_read(graph, candidate->covers, i, layouts, value);
        }
      }
      for (const int value : graph.nodes[candidate->covers.back()].outputs) {
        at_value[value] |= set_of(layouts.dst);
      }
    }
  }
  return at_value;
}

}  // namespace torchalgo::planner
