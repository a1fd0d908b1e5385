// SPDX-License-Identifier: BSD-3-Clause
#include "planner/allowed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <tuple>

#include "base/error.h"

namespace torchalgo::planner {
namespace {

bool is_among(Layout layout, const std::vector<Layout>& layouts) {
  return std::find(layouts.begin(), layouts.end(), layout) != layouts.end();
}

// Returns true if every data input is an input of the graph, in the layout in which the caller
// passes it.
bool reads_border(const Graph& graph, const Candidate& candidate) {
  const bool has_residual = has(epilogue_of(candidate.problem), PostOp::kAdd);
  const auto end = candidate.inputs.end() - (has_residual ? 1 : 0);
  return std::all_of(candidate.inputs.begin(), end, [&](int value) {
    const auto input = std::find(graph.inputs.begin(), graph.inputs.end(), value);
    return input != graph.inputs.end() &&
           graph.input_layouts[input - graph.inputs.begin()] == input_layout(candidate);
  });
}

void keep_layouts(const Graph& graph, std::vector<const Candidate*>& list,
                  const std::vector<Layout>& layouts) {
  const auto inside = [&](const Candidate* c) { return keeps_to(graph, *c, layouts); };
  const bool exists = std::any_of(list.begin(), list.end(), [&](const Candidate* c) {
    return c->covers.size() == 1 && inside(c);
  });
  if (exists) std::erase_if(list, [&](const Candidate* c) { return !inside(c); });
}

// Checks a chain. The values between its nodes are never written to memory, so they must have no
// other readers.
void check_chain(const Graph& graph, const std::vector<std::vector<int>>& readers,
                 const Candidate& candidate, int anchor) {
  TORCHALGO_ASSERT(!candidate.covers.empty() && candidate.covers.front() == anchor);
  for (std::size_t i = 0; i < candidate.covers.size(); ++i) {
    TORCHALGO_ASSERT(graph.nodes[candidate.covers[i]].problem.has_value());
    if (i + 1 == candidate.covers.size()) break;
    const Node& node = graph.nodes[candidate.covers[i]];
    TORCHALGO_ASSERT(node.outputs.size() == 1);
    const int link = node.outputs.front();
    TORCHALGO_ASSERT(readers[link] == std::vector<int>{candidate.covers[i + 1]});
    TORCHALGO_ASSERT(std::find(graph.outputs.begin(), graph.outputs.end(), link) ==
                     graph.outputs.end());
  }
}

bool is_small(const Candidate& candidate, const PlanOptions& options) {
  return !options.workspace_limit_bytes ||
         candidate.primitive.workspace_bytes <= *options.workspace_limit_bytes;
}

std::string least_workspace(const std::vector<Candidate>& list, const PlanOptions& options) {
  if (!options.workspace_limit_bytes || list.empty()) return "";
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Candidate& c : list) least = std::min(least, c.primitive.workspace_bytes);
  return fmt::format("; the least workspace is {} bytes, the limit {}", least,
                     *options.workspace_limit_bytes);
}

std::string supported(const std::vector<Candidate>& list) {
  std::set<std::string> names;
  for (const Candidate& candidate : list) names.insert(candidate.primitive.name);
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

void check_all_covered(const Graph& graph, const Candidates& candidates,
                       const CandidateLists& allowed, const PlanOptions& options) {
  std::vector<bool> is_covered(graph.nodes.size(), false);
  for (const auto& list : allowed) {
    for (const Candidate* candidate : list) {
      for (const int node : candidate->covers) is_covered[node] = true;
    }
  }
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (is_covered[n] || !graph.nodes[n].problem) continue;
    throw NoPlan(fmt::format("TA2301 {}: no candidate is allowed; supported: {}{}",
                             graph.nodes[n].name, supported(candidates.by_anchor[n]),
                             least_workspace(candidates.by_anchor[n], options)));
  }
}

auto identity(const Candidate& candidate) {
  const Primitive& primitive = candidate.primitive;
  return std::tuple(std::string_view(primitive.name), primitive.src, primitive.dst);
}

Ticks cost_of(const Candidate& candidate, const CostTable& costs) {
  const auto cost = find_cost(costs, cost_key(candidate.problem, candidate.primitive));
  return cost ? cost->ticks : std::numeric_limits<Ticks>::max();
}

// Finds the choice of tuning each convolution by itself. It is a call of the convolution alone, or
// with the activation behind it if the call absorbs that.
class OwnFastest {
 public:
  OwnFastest(const Graph& graph, const CandidateLists& allowed, const CostTable& costs)
      : graph_(graph), allowed_(allowed), costs_(costs), readers_(readers_of(graph)) {}

  [[nodiscard]] const Candidate& of(std::size_t node) const {
    const auto rank = [&](const Candidate* c) {
      return std::tuple(!is_alone(*c), cost(*c), identity(*c));
    };
    return **std::min_element(
        allowed_[node].begin(), allowed_[node].end(),
        [&](const Candidate* a, const Candidate* b) { return rank(a) < rank(b); });
  }

 private:
  [[nodiscard]] bool is_alone(const Candidate& c) const {
    return std::all_of(c.covers.begin() + 1, c.covers.end(), [&](int covered) {
      return is_lone_activation(*graph_.nodes[covered].problem);
    });
  }

  // Returns the cost of a candidate. If the activation needs another call, its cost is added, so
  // that all candidates are comparable.
  [[nodiscard]] Ticks cost(const Candidate& c) const {
    const Ticks own = cost_of(c, costs_);
    const std::vector<int>& readers = readers_[graph_.nodes[c.covers.back()].outputs.at(0)];
    if (c.covers.size() > 1 || readers.size() != 1) return own;
    const std::optional<Problem>& next = graph_.nodes[readers[0]].problem;
    if (!next || !is_lone_activation(*next)) return own;
    Ticks least = std::numeric_limits<Ticks>::max();
    for (const Candidate* other : allowed_[readers[0]]) {
      if (other->covers.size() == 1 && input_layout(*other) == result_layout(c))
        least = std::min(least, cost_of(*other, costs_));
    }
    return least > std::numeric_limits<Ticks>::max() - own ? own : own + least;
  }

  const Graph& graph_;
  const CandidateLists& allowed_;
  const CostTable& costs_;
  std::vector<std::vector<int>> readers_;
};

}  // namespace

bool keeps_to(const Graph& graph, const Candidate& candidate, const std::vector<Layout>& layouts) {
  const ChainLayouts read = layouts_of(candidate);
  const auto* conv = std::get_if<ConvProblem>(&candidate.problem);
  const bool is_filter = conv != nullptr && conv->direction == Direction::kBackwardFilter;
  return is_among(is_filter ? read.src[1] : read.dst, layouts) &&
         (is_among(read.src[0], layouts) || reads_border(graph, candidate));
}

CandidateLists allowed_candidates(const Graph& graph, const Candidates& candidates,
                                  const PlanOptions& options) {
  TORCHALGO_CHECK(candidates.by_anchor.size() == graph.nodes.size(),
                  "TA2306 make_plan: got the candidates of {} nodes, expected those of {}: find "
                  "them for this graph",
                  candidates.by_anchor.size(), graph.nodes.size());
  const std::vector<std::vector<int>> readers = readers_of(graph);
  CandidateLists allowed(graph.nodes.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!graph.nodes[n].problem) continue;
    for (const Candidate& candidate : candidates.by_anchor[n]) {
      check_chain(graph, readers, candidate, static_cast<int>(n));
      if (!is_small(candidate, options)) continue;
      if (!options.allow || options.allow(candidate)) allowed[n].push_back(&candidate);
    }
    if (!options.layouts.empty()) keep_layouts(graph, allowed[n], options.layouts);
  }
  check_all_covered(graph, candidates, allowed, options);
  return allowed;
}

CandidateLists own_fastest(const Graph& graph, const CandidateLists& allowed,
                           const CostTable& costs) {
  CandidateLists fastest = allowed;
  const OwnFastest own(graph, allowed, costs);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const std::optional<Problem>& problem = graph.nodes[n].problem;
    if (!problem || !std::holds_alternative<ConvProblem>(*problem)) continue;
    if (allowed[n].empty()) continue;  // left to a chain
    const auto chosen = identity(own.of(n));
    std::erase_if(fastest[n], [&](const Candidate* c) { return identity(*c) != chosen; });
  }
  return fastest;
}

}  // namespace torchalgo::planner
