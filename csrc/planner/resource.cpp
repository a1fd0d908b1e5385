// SPDX-License-Identifier: BSD-3-Clause
#include "planner/resource.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace torchalgo::planner {
namespace {

std::int64_t use_of(const Alternative& alternative) {
  return is_absorbed(alternative) ? 0 : alternative.options.front().use;
}

void check_fit(const Candidates& candidates, const Resource& resource) {
  bool fits = resource.use.size() == candidates.by_anchor.size();
  for (std::size_t n = 0; fits && n < resource.use.size(); ++n) {
    const std::vector<std::int64_t>& use = resource.use[n];
    fits = use.size() == candidates.by_anchor[n].size() &&
           std::all_of(use.begin(), use.end(), [](std::int64_t u) { return u >= 0; });
  }
  TORCHALGO_CHECK(fits, "make_plan: {} must be given per candidate, as the candidates, and >= 0",
                  resource.name);
}

}  // namespace

void add_uses(const Candidates& candidates, const Resource& resource, PricedLists& priced) {
  check_fit(candidates, resource);
  for (std::size_t n = 0; n < priced.size(); ++n) {
    for (PricedCandidate& option : priced[n]) {
      option.use = resource.use[n][option.candidate - candidates.by_anchor[n].data()];
    }
  }
}

Budget budget_of(const Model& model, const Encoding& encoding, std::int64_t limit) {
  Budget budget{{}, limit};
  for (const auto& costs : encoding.problem.node_costs) budget.use.emplace_back(costs.size(), 0);
  for (std::size_t n = 0; n < model.alternatives.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable < 0) continue;
    std::transform(model.alternatives[n].begin(), model.alternatives[n].end(),
                   budget.use[variable].begin(), [](const Alternative& a) { return use_of(a); });
  }
  return budget;
}

std::int64_t use_of(const Model& model, const Encoding& encoding, const std::vector<int>& choice) {
  std::int64_t sum = 0;
  for (std::size_t n = 0; n < model.alternatives.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable >= 0) sum += use_of(model.alternatives[n][choice[variable]]);
  }
  return sum;
}

std::string explain_scarcity(const Model& model, const Encoding& encoding, const Resource& resource,
                             const std::vector<int>& leanest) {
  std::vector<std::pair<std::int64_t, std::string>> uses;
  for (std::size_t n = 0; n < model.alternatives.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable < 0) continue;
    const std::int64_t use = use_of(model.alternatives[n][leanest[variable]]);
    if (use > 0) uses.emplace_back(-use, model.graph.nodes[n].name);
  }
  std::sort(uses.begin(), uses.end());
  std::vector<std::string> largest;
  for (std::size_t i = 0; i < std::min<std::size_t>(uses.size(), 3); ++i) {
    largest.push_back(fmt::format("{} {}", uses[i].second, -uses[i].first));
  }
  return fmt::format(
      "{} of at most {} cannot be kept: the allowed candidates need at least {} "
      "({}{}); raise the limit or allow more candidates",
      resource.name, resource.limit, use_of(model, encoding, leanest), fmt::join(largest, ", "),
      uses.size() > 3 ? ", ..." : "");
}

}  // namespace torchalgo::planner
