// SPDX-License-Identifier: BSD-3-Clause
#include "planner/resource.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace torchalgo::planner {
namespace {

ResourceUse resource_use_of(const Alternative& alternative) {
  return is_absorbed(alternative) ? ResourceUse{} : alternative.options.front().use;
}

void check_fit(const Candidates& candidates, const Resource& resource) {
  bool fits = resource.use.size() == candidates.by_anchor.size();
  for (std::size_t n = 0; fits && n < resource.use.size(); ++n) {
    const std::vector<std::int64_t>& use = resource.use[n];
    fits = use.size() == candidates.by_anchor[n].size() &&
           std::all_of(use.begin(), use.end(), [](std::int64_t u) { return u >= 0; });
  }
  TORCHALGO_CHECK(fits,
                  "TA2306 make_plan: the use of {} does not fit, expected a value of 0 or more for "
                  "each candidate",
                  resource.name);
}

std::string spell(const Resource& resource, std::int64_t use) {
  if (resource.unit == 1) return fmt::format("{}", use);
  return fmt::format("{:.3g}", static_cast<double>(use) * resource.unit);
}

std::string spell_limit(const Resource& resource) {
  return fmt::format("{} of at most {}", resource.name, spell(resource, resource.limit));
}

}  // namespace

void check_resources(const Candidates& candidates, const std::vector<Resource>& resources) {
  TORCHALGO_CHECK(resources.size() <= kMostResources,
                  "TA2306 make_plan: got {} resources, expected at most {}", resources.size(),
                  kMostResources);
  for (const Resource& resource : resources) check_fit(candidates, resource);
}

void add_resource_use(const Candidates& candidates, const std::vector<Resource>& resources,
                      PricedLists& priced) {
  for (std::size_t n = 0; n < priced.size(); ++n) {
    for (PricedCandidate& option : priced[n]) {
      const auto index = option.candidate - candidates.by_anchor[n].data();
      for (std::size_t r = 0; r < resources.size(); ++r) option.use[r] = resources[r].use[n][index];
    }
  }
}

Constraints constraints_of(const Model& model, const Encoding& encoding,
                           const std::vector<Resource>& resources) {
  Constraints constraints;
  for (std::size_t r = 0; r < resources.size(); ++r) constraints.limit[r] = resources[r].limit;
  for (const auto& costs : encoding.problem.node_costs)
    constraints.use.emplace_back(costs.size(), ResourceUse{});
  for (std::size_t n = 0; n < model.alternatives.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable < 0) continue;
    std::transform(model.alternatives[n].begin(), model.alternatives[n].end(),
                   constraints.use[variable].begin(),
                   [](const Alternative& a) { return resource_use_of(a); });
  }
  return constraints;
}

std::vector<std::int64_t> resource_use_of(const Graph& graph, const Candidates& candidates,
                                          const std::vector<Resource>& resources,
                                          const Plan& plan) {
  std::vector<std::int64_t> uses(resources.size(), 0);
  auto planned = plan.nodes.begin();
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!graph.nodes[n].problem) continue;
    const PlanNode& node = *planned++;
    const auto& list = candidates.by_anchor[n];
    const auto chosen = std::find_if(list.begin(), list.end(), [&](const Candidate& c) {
      return c.primitive == node.primitive && to_string(c.problem) == node.problem;
    });
    if (chosen == list.end()) continue;  // absorbed
    for (std::size_t r = 0; r < resources.size(); ++r)
      uses[r] += resources[r].use[n][chosen - list.begin()];
  }
  return uses;
}

bool keeps_limits(const std::vector<std::int64_t>& uses, const std::vector<Resource>& resources) {
  for (std::size_t r = 0; r < resources.size(); ++r) {
    if (uses[r] > resources[r].limit) return false;
  }
  return true;
}

ResourceUse resource_use_of(const Model& model, const Encoding& encoding,
                            const std::vector<int>& choice) {
  ResourceUse sum = {};
  for (std::size_t n = 0; n < model.alternatives.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable >= 0) sum = sum + resource_use_of(model.alternatives[n][choice[variable]]);
  }
  return sum;
}

std::string explain_infeasible_resource(const Model& model, const Encoding& encoding,
                                        const std::vector<Resource>& resources,
                                        std::size_t infeasible_resource, bool within_others,
                                        const std::vector<int>& least_use_choice) {
  const Resource& resource = resources[infeasible_resource];
  std::vector<std::pair<std::int64_t, std::string>> uses;
  for (std::size_t n = 0; n < model.alternatives.size(); ++n) {
    const int variable = encoding.variable[n];
    if (variable < 0) continue;
    const std::int64_t use =
        resource_use_of(model.alternatives[n][least_use_choice[variable]])[infeasible_resource];
    if (use > 0) uses.emplace_back(-use, model.graph.nodes[n].name);
  }
  std::sort(uses.begin(), uses.end());
  std::vector<std::string> largest;
  for (std::size_t i = 0; i < std::min<std::size_t>(uses.size(), 3); ++i) {
    largest.push_back(fmt::format("{} {}", uses[i].second, spell(resource, -uses[i].first)));
  }
  std::string others;
  for (std::size_t r = 0; within_others && r < resources.size(); ++r) {
    if (r != infeasible_resource)
      others += fmt::format(" together with {}", spell_limit(resources[r]));
  }
  return fmt::format(
      "{} cannot be kept{}: the allowed candidates need at least {} ({}{}); raise the limit or "
      "allow more candidates",
      spell_limit(resource), others,
      spell(resource, resource_use_of(model, encoding, least_use_choice)[infeasible_resource]),
      fmt::join(largest, ", "), uses.size() > 3 ? ", ..." : "");
}

}  // namespace torchalgo::planner
