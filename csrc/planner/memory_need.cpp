// SPDX-License-Identifier: BSD-3-Clause
#include "planner/memory_need.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <variant>

#include "ir/arithmetic.h"
#include "ir/transform_shape.h"
#include "ir/view.h"

namespace torchalgo {
namespace {

// Sets of values that may share memory, as those of views do.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t values) : parent_(values) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }

  int of(int value) const {
    while (parent_[value] != value) value = parent_[value];
    return value;
  }

  void join(int a, int b) { parent_[of(a)] = of(b); }

 private:
  std::vector<int> parent_;
};

class MemoryNeed {
 public:
  MemoryNeed(const Graph& graph, const Candidates& candidates)
      : graph_(graph),
        memory_(graph.values.size()),
        last_(graph.values.size(), -1),
        is_callers_(graph.values.size(), false),
        may_be_absorbed_(graph.values.size(), false) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const int value : graph.nodes[n].inputs) last_[value] = static_cast<int>(n);
      if (may_be_view(graph.nodes[n], candidates.by_anchor[n])) join_all(graph.nodes[n]);
      for (const Candidate& candidate : candidates.by_anchor[n])
        for (std::size_t i = 0; i + 1 < candidate.covers.size(); ++i)
          for (const int value : graph.nodes[candidate.covers[i]].outputs)
            may_be_absorbed_[value] = true;
    }
    for (const int value : graph.inputs) is_callers_[memory_.of(value)] = true;
    for (const int value : graph.outputs) is_callers_[memory_.of(value)] = true;
  }

  std::int64_t of(const Candidate& candidate) const {
    const int first = candidate.covers.front(), last = candidate.covers.back();
    std::map<int, std::int64_t> bytes;  // by set of values
    const auto add = [&](int value, Layout layout) {
      if (is_callers_[memory_.of(value)]) return;
      std::int64_t& most = bytes[memory_.of(value)];
      most = std::max(most, bytes_of(graph_.values[value], layout));
    };
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const int producer = graph_.values[v].producer;
      if (producer >= 0 && producer < first && last_[v] > last && !may_be_absorbed_[v])
        add(static_cast<int>(v), Layout::kNchw);
    }
    const bool has_residual = has(epilogue_of(candidate.problem), PostOp::kAdd);
    for (std::size_t i = 0; i < candidate.inputs.size(); ++i) {
      const bool is_residual = has_residual && i + 1 == candidate.inputs.size();
      add(candidate.inputs[i], is_residual
                                   ? result_layout(candidate)
                                   : input_layout(candidate.problem, candidate.primitive, i));
    }
    for (const int value : graph_.nodes[last].outputs) add(value, result_layout(candidate));
    std::int64_t sum = candidate.primitive.workspace_bytes;
    for (const auto& [set, most] : bytes) sum += most;
    return sum;
  }

 private:
  static bool may_be_view(const Node& node, const std::vector<Candidate>& candidates) {
    return !node.problem || std::any_of(candidates.begin(), candidates.end(),
                                        [](const auto& c) { return is_view(c.primitive.name); });
  }

  void join_all(const Node& node) {
    for (const int made : node.outputs)
      for (const int read : node.inputs) memory_.join(made, read);
  }

  const Graph& graph_;
  SharedMemory memory_;
  std::vector<int> last_;              // by value: the last node that reads it
  std::vector<bool> is_callers_;       // by set of values
  std::vector<bool> may_be_absorbed_;  // by value: some candidate never writes it
};

}  // namespace

std::vector<std::vector<std::int64_t>> memory_need(const Graph& graph,
                                                   const Candidates& candidates) {
  const MemoryNeed need(graph, candidates);
  std::vector<std::vector<std::int64_t>> bytes;
  for (const std::vector<Candidate>& list : candidates.by_anchor) {
    bytes.emplace_back();
    for (const Candidate& candidate : list) bytes.back().push_back(need.of(candidate));
  }
  return bytes;
}

std::vector<std::int64_t> memory_need(const Graph& graph,
                                      const std::vector<Candidate>& transforms) {
  std::vector<TransformProblem> of_caller;
  for (const std::vector<int>* values : {&graph.inputs, &graph.outputs}) {
    for (const int value : *values) {
      if (const auto shape = transform_shape(graph.values[value])) of_caller.push_back(*shape);
    }
  }
  std::vector<std::int64_t> bytes;
  for (const Candidate& transform : transforms) {
    TransformProblem shape = std::get<TransformProblem>(transform.problem);
    const Layout from = std::exchange(shape.from, TransformProblem().from);
    const Layout to = std::exchange(shape.to, TransformProblem().to);
    const auto in = [&](Layout layout) {
      return element_count(layout, shape.n, shape.c, shape.d * shape.h * shape.w) *
             element_bytes(element_type(layout, shape.dtype));
    };
    const std::int64_t src = in(from), dst = in(to);
    const bool may_be_callers =
        std::find(of_caller.begin(), of_caller.end(), shape) != of_caller.end();
    if (is_view(transform.primitive.name))
      bytes.push_back(0);
    else
      bytes.push_back((may_be_callers ? std::min(src, dst) : src + dst) +
                      transform.primitive.workspace_bytes);
  }
  return bytes;
}

}  // namespace torchalgo
