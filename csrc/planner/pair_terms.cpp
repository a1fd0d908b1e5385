// SPDX-License-Identifier: BSD-3-Clause
#include "planner/pair_terms.h"

#include <map>

#include "base/error.h"

namespace torchalgo::planner {
namespace {

// Returns the alternative of each possible choice.
std::map<NodeChoice, AlternativeAt> index_choices(
    const Graph& graph, const std::vector<std::vector<Alternative>>& alternatives) {
  std::map<NodeChoice, AlternativeAt> index;
  for (std::size_t n = 0; n < alternatives.size(); ++n) {
    for (std::size_t a = 0; a < alternatives[n].size(); ++a) {
      const Alternative& alternative = alternatives[n][a];
      if (is_absorbed(alternative)) continue;
      // Further options are in no pair, because a paired candidate is an alternative of its own.
      const Candidate& candidate = *alternative.options.front().candidate;
      index[{graph.nodes[n].name, cost_key(candidate.problem, candidate.primitive)}] = {
          static_cast<int>(n), static_cast<int>(a)};
    }
  }
  return index;
}

}  // namespace

std::vector<PairTerm> find_pairs(const Graph& graph,
                                 const std::vector<std::vector<Alternative>>& alternatives,
                                 const CostTable& costs) {
  std::vector<PairTerm> terms;
  if (costs.pairs.empty()) return terms;
  const std::map<NodeChoice, AlternativeAt> index = index_choices(graph, alternatives);
  for (const auto& [key, ticks] : costs.pairs) {
    TORCHALGO_CHECK(
        key.producer.node != key.reader.node,
        "TA2306 make_plan: got the cost of a pair of {} with itself, expected two nodes",
        key.reader.node);
    const auto reader = index.find(key.reader);
    if (reader == index.end()) continue;
    PairTerm term = {{}, reader->second, ticks, &key};
    if (!key.producer.node.empty()) {
      const auto producer = index.find(key.producer);
      if (producer == index.end()) continue;
      term.producer = producer->second;
    }
    terms.push_back(term);
  }
  return terms;
}

}  // namespace torchalgo::planner
