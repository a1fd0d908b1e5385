// SPDX-License-Identifier: BSD-3-Clause
#include "ir/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/error.h"
#include "base/hash.h"

namespace torchalgo {
namespace {

bool is_value(const Graph& graph, int index) {
  return index >= 0 && index < static_cast<int>(graph.values.size());
}

}  // namespace

bool has_own_layouts(const Node& node) {
  return node.reads != Layout::kNchw || node.makes != Layout::kNchw;
}

std::string layouts_text(const Node& node) {
  return fmt::format("{}->{}", to_string(node.reads), to_string(node.makes));
}

std::string structure_hash(const Graph& graph, int version) {
  std::uint64_t hash = fnv1a64(fmt::format("torchalgo graph {}", version));
  const auto add = [&hash](std::string_view text) { hash = fnv1a64("\n", fnv1a64(text, hash)); };
  for (const Value& value : graph.values) {
    add(fmt::format("value {} [{}] {}", value.name, fmt::join(value.sizes, ","),
                    value.dtype ? to_string(*value.dtype) : "-"));
  }
  for (const Node& node : graph.nodes) {
    add(fmt::format("node {} {} ({}) -> ({}) {}", node.name, node.kind, fmt::join(node.inputs, ","),
                    fmt::join(node.outputs, ","), node.problem ? to_string(*node.problem) : "-"));
    if (version >= kFirstWithLayouts && has_own_layouts(node)) add(layouts_text(node));
  }
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    add(fmt::format("input {} {}", graph.inputs[i], to_string(graph.input_layouts[i])));
  }
  add(fmt::format("outputs {}", fmt::join(graph.outputs, ",")));
  return fmt::format("{:016x}", hash);
}

std::vector<std::vector<int>> readers_of(const Graph& graph) {
  std::vector<std::vector<int>> readers(graph.values.size());
  for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
    for (const int value : graph.nodes[node].inputs)
      readers[value].push_back(static_cast<int>(node));
  }
  return readers;
}

void check_graph(const Graph& graph) {
  std::vector<bool> defined(graph.values.size(), false);
  TORCHALGO_ASSERT(graph.inputs.size() == graph.input_layouts.size());
  for (const int input : graph.inputs) {
    TORCHALGO_ASSERT(is_value(graph, input) && graph.values[input].producer == -1);
    defined[input] = true;
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    TORCHALGO_ASSERT(names.insert(node.name).second);
    for (const int input : node.inputs) TORCHALGO_ASSERT(is_value(graph, input) && defined[input]);
    const bool is_opaque = !node.problem;
    TORCHALGO_ASSERT(is_opaque || !(node.reads_shape_only || has_own_layouts(node)));
    TORCHALGO_ASSERT(!is_blocked(node.reads) && !is_blocked(node.makes));
    for (const int output : node.outputs) {
      TORCHALGO_ASSERT(is_value(graph, output) && !defined[output]);
      TORCHALGO_ASSERT(graph.values[output].producer == static_cast<int>(i));
      defined[output] = true;
    }
  }
  std::set<std::string> value_names;
  for (const Value& value : graph.values) TORCHALGO_ASSERT(value_names.insert(value.name).second);
  for (const int output : graph.outputs)
    TORCHALGO_ASSERT(is_value(graph, output) && defined[output]);
}

}  // namespace torchalgo
