// SPDX-License-Identifier: BSD-3-Clause
#include "planner/alternatives.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

namespace torchalgo::planner {
namespace {

std::vector<std::string_view> names_of(const Graph& graph, const std::vector<int>& nodes) {
  std::vector<std::string_view> names;
  names.reserve(nodes.size());
  for (const int node : nodes) names.emplace_back(graph.nodes[node].name);
  return names;
}

// Splits a group of candidates that are equal for the rest of the graph. Each candidate that uses
// less of a resource than all cheaper ones is an alternative. The others become options of the
// cheapest alternative that uses no more.
void add_by_use(const Alternative& group, std::vector<Alternative>& alternatives) {
  const auto first = static_cast<std::ptrdiff_t>(alternatives.size());
  for (const PricedCandidate& option : group.options) {
    const auto better = std::find_if(
        alternatives.begin() + first, alternatives.end(),
        [&](const Alternative& a) { return is_within(a.options.front().use, option.use); });
    if (better != alternatives.end()) {
      better->options.push_back(option);
      continue;
    }
    alternatives.push_back(group);
    alternatives.back().options = {option};
  }
}

// Returns the alternatives of an anchor. Candidates that are equal for the rest of the graph form
// one group.
std::vector<Alternative> own_alternatives(const std::vector<PricedCandidate>& priced) {
  std::map<std::tuple<std::vector<int>, std::array<Layout, 3>, Layout>, Alternative> groups;
  for (const PricedCandidate& option : priced) {
    const Candidate& candidate = *option.candidate;
    const ChainLayouts layouts = layouts_of(candidate);
    Alternative& group = groups[{candidate.covers, layouts.src, layouts.dst}];
    group.covers = candidate.covers;
    group.layouts = layouts;
    group.options.push_back(option);
  }
  std::vector<Alternative> alternatives;
  for (auto& [key, group] : groups) {
    std::stable_sort(group.options.begin(), group.options.end(), [](const auto& a, const auto& b) {
      return std::tie(a.cost.ticks, a.use, a.candidate->primitive.name) <
             std::tie(b.cost.ticks, b.use, b.candidate->primitive.name);
    });
    add_by_use(group, alternatives);
  }
  return alternatives;
}

void add_absorbed(const std::vector<Alternative>& own,
                  std::vector<std::vector<Alternative>>& of_node) {
  std::set<std::pair<std::vector<int>, Layout>> seen;  // candidates of several src are one chain
  for (const Alternative& anchor : own) {
    const Layout dst = anchor.layouts.dst;
    if (!seen.emplace(anchor.covers, dst).second) continue;
    for (int i = 1; i < static_cast<int>(anchor.covers.size()); ++i) {
      of_node[anchor.covers[i]].push_back({anchor.covers, i, {{dst, dst, dst}, dst}, {}});
    }
  }
}

// Sorts the anchor's alternatives by name, layouts and coverage, and after them absorbed ones by
// chain.
void sort_by_name(const Graph& graph, std::vector<Alternative>& alternatives) {
  const auto key = [&](const Alternative& a) {
    const std::string_view primitive =
        is_absorbed(a) ? std::string_view() : a.options.front().candidate->primitive.name;
    return std::tuple(is_absorbed(a), primitive, a.layouts.src[0], a.layouts.dst, a.layouts.src,
                      names_of(graph, a.covers));
  };
  std::sort(alternatives.begin(), alternatives.end(),
            [&](const Alternative& a, const Alternative& b) { return key(a) < key(b); });
}

}  // namespace

PricedLists price_candidates(const CandidateLists& candidates, const CostTable& costs,
                             std::set<CostKey>& missing) {
  PricedLists priced(candidates.size());
  for (std::size_t n = 0; n < candidates.size(); ++n) {
    for (const Candidate* candidate : candidates[n]) {
      CostKey key = cost_key(candidate->problem, candidate->primitive);
      if (const std::optional<Cost> cost = find_cost(costs, key)) {
        priced[n].push_back({candidate, *cost});
      } else {
        missing.insert(std::move(key));
      }
    }
  }
  return priced;
}

std::vector<std::vector<Alternative>> list_alternatives(const Graph& graph,
                                                        const PricedLists& priced) {
  std::vector<std::vector<Alternative>> of_node(graph.nodes.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    std::vector<Alternative> own = own_alternatives(priced[n]);
    add_absorbed(own, of_node);
    std::move(own.begin(), own.end(), std::back_inserter(of_node[n]));
  }
  for (std::vector<Alternative>& alternatives : of_node) sort_by_name(graph, alternatives);
  return of_node;
}

}  // namespace torchalgo::planner
