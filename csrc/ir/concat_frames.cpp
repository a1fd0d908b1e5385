// SPDX-License-Identifier: BSD-3-Clause
#include "ir/concat_frames.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ir/view.h"

namespace torchalgo {
namespace {

const ConcatProblem* concat_of(const Node& node) {
  return node.problem ? std::get_if<ConcatProblem>(&*node.problem) : nullptr;
}

std::int64_t channels_of(const Node& node) {
  const std::vector<std::int64_t>& c = concat_of(node)->c;
  return std::accumulate(c.begin(), c.end(), std::int64_t{0});
}

bool is_image(const Value& value) { return value.sizes.size() == 4 && value.dtype == DType::kF32; }

bool could_be_relabelled(const ConcatProblem& concat, std::int64_t channels, Layout layout) {
  return std::any_of(kAllLayouts.begin(), kAllLayouts.end(), [&](Layout other) {
    return other != layout && lies_alike(concat.n, channels, concat.h * concat.w, other, layout);
  });
}

// Returns true if the value is a slice. A slice may share the memory of the tensor that it is a
// part of.
bool is_part(const Graph& graph, int value) {
  const int producer = graph.values[value].producer;
  if (producer < 0 || !graph.nodes[producer].problem) return false;
  return std::holds_alternative<SliceProblem>(*graph.nodes[producer].problem);
}

// Returns true if each input can be written straight into a part of the result of its own.
bool has_whole_parts(const Graph& graph, const Node& node, Layout layout) {
  const ConcatProblem* concat = concat_of(node);
  if (concat == nullptr || concat->n != 1) return false;
  std::vector<int> inputs = node.inputs;
  std::sort(inputs.begin(), inputs.end());
  if (std::adjacent_find(inputs.begin(), inputs.end()) != inputs.end()) return false;
  for (std::size_t i = 0; i < concat->c.size(); ++i) {
    if (!is_image(graph.values[node.inputs[i]])) return false;
    if (is_part(graph, node.inputs[i])) return false;
    if (i + 1 < concat->c.size() && concat->c[i] % block_size(layout) != 0) return false;
    if (could_be_relabelled(*concat, concat->c[i], layout)) return false;
  }
  return is_image(graph.values[node.outputs[0]]);
}

// Returns the concatenations, most channels first. Of equal ones, the later in the graph comes
// first, so that a result gets its memory before its inputs do.
std::vector<int> largest_first(const Graph& graph, Layout layout) {
  std::vector<int> concats;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (has_whole_parts(graph, graph.nodes[n], layout)) concats.push_back(static_cast<int>(n));
  }
  const auto key = [&](int node) { return std::pair(-channels_of(graph.nodes[node]), -node); };
  std::sort(concats.begin(), concats.end(), [&](int a, int b) { return key(a) < key(b); });
  return concats;
}

// Returns the part of another frame in which all inputs are adjacent, or nullopt if they are not.
std::optional<FramePlace> common_range(const ConcatFrames& frames, const Node& node) {
  const std::optional<FramePlace> first = frames.of_value[node.inputs[0]];
  if (!first) return std::nullopt;
  FramePlace next = *first;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (frames.of_value[node.inputs[i]] != next) return std::nullopt;
    next.channel += concat_of(node)->c[i];
  }
  return first;
}

}  // namespace

ConcatFrames concat_frames(const Graph& graph, Layout layout) {
  ConcatFrames frames;
  frames.of_value.resize(graph.values.size());
  frames.of_concat.resize(graph.nodes.size());
  for (const int concat : largest_first(graph, layout)) {
    const Node& node = graph.nodes[concat];
    const bool is_free = std::none_of(node.inputs.begin(), node.inputs.end(), [&](int value) {
      return frames.of_value[value].has_value();
    });
    if (!is_free) {
      // A result that is already a part of one frame cannot be a part of another one.
      if (!frames.of_value[node.outputs[0]]) frames.of_concat[concat] = common_range(frames, node);
      continue;
    }
    FramePlace next = {concat, 0};
    frames.of_concat[concat] = next;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      frames.of_value[node.inputs[i]] = next;
      next.channel += concat_of(node)->c[i];
    }
  }
  return frames;
}

}  // namespace torchalgo
