// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "ir/view.h"
#include "planner/make_plan.h"
#include "planner/value_flow.h"

namespace torchalgo {
namespace {

using planner::LayoutSet;

planner::CandidateLists all_candidates(const Candidates& candidates) {
  planner::CandidateLists lists(candidates.by_anchor.size());
  for (std::size_t n = 0; n < lists.size(); ++n) {
    for (const Candidate& candidate : candidates.by_anchor[n]) lists[n].push_back(&candidate);
  }
  return lists;
}

// Adds one problem per pair of layouts of the set, by its text.
void add_changes(TransformProblem shape, LayoutSet layouts,
                 std::map<std::string, TransformProblem>& problems) {
  for (const Layout from : kAllLayouts) {
    for (const Layout to : kAllLayouts) {
      const LayoutSet pair = planner::set_of(from) | planner::set_of(to);
      if (from == to || !planner::includes(layouts, pair)) continue;
      shape.from = from;
      shape.to = to;
      problems.emplace(to_string(Problem(shape)), shape);
    }
  }
}

// Keeps only views if there are any: they cost nothing, so no other primitive need be measured.
void keep_views(std::vector<Primitive>& primitives) {
  const auto moves = [](const Primitive& primitive) { return !is_view(primitive.name); };
  if (!std::all_of(primitives.begin(), primitives.end(), moves)) std::erase_if(primitives, moves);
}

}  // namespace

std::vector<Candidate> transform_candidates(
    const Graph& graph, const Candidates& candidates,
    const std::function<std::vector<Primitive>(const Problem&)>& offers) {
  const std::vector<planner::ValueFlow> flow = planner::trace_values(graph);
  const std::vector<LayoutSet> at_value =
      planner::layouts_at_values(graph, flow, all_candidates(candidates));
  std::map<std::string, TransformProblem> problems;
  for (std::size_t v = 0; v < flow.size(); ++v) {
    if (flow[v].shape) add_changes(*flow[v].shape, at_value[v], problems);
  }
  std::vector<Candidate> changes;
  for (const auto& [spelling, problem] : problems) {
    std::vector<Primitive> primitives = offers(problem);
    keep_views(primitives);
    std::sort(primitives.begin(), primitives.end(), [](const Primitive& a, const Primitive& b) {
      return std::tie(a.name, a.src, a.dst) < std::tie(b.name, b.src, b.dst);
    });
    for (const Primitive& primitive : primitives) changes.push_back({{}, problem, primitive, {}});
  }
  return changes;
}

}  // namespace torchalgo
