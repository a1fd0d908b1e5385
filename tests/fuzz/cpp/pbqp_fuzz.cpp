// SPDX-License-Identifier: BSD-3-Clause
// A text is refused with std::invalid_argument, or the problem survives its text; if it is small,
// the solver's cost is the least one of all choices.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "pbqp/problem.h"
#include "pbqp/solve.h"
#include "pbqp/text.h"

namespace {

using namespace torchalgo::pbqp;

/// The cost of a choice; nothing if it is forbidden.
std::optional<__int128> cost_of(const Problem& problem, const std::vector<int>& choice) {
  __int128 sum = 0;
  for (std::size_t u = 0; u < choice.size(); ++u) {
    const Cost cost = problem.node_costs[u][static_cast<std::size_t>(choice[u])];
    if (cost == kForbidden) return std::nullopt;
    sum += cost;
  }
  for (const Edge& edge : problem.edges) {
    const auto i = static_cast<std::size_t>(choice[static_cast<std::size_t>(edge.u)]);
    const auto j = static_cast<std::size_t>(choice[static_cast<std::size_t>(edge.v)]);
    const std::size_t columns = problem.node_costs[static_cast<std::size_t>(edge.v)].size();
    const Cost cost = edge.matrix[i * columns + j];
    if (cost == kForbidden) return std::nullopt;
    sum += cost;
  }
  return sum;
}

/// The least cost of all choices; nothing if there is none.
std::optional<__int128> brute_force(const Problem& problem) {
  for (const auto& costs : problem.node_costs)
    if (costs.empty()) return std::nullopt;
  std::vector<int> choice(problem.node_costs.size(), 0);
  std::optional<__int128> best;
  for (;;) {
    const auto cost = cost_of(problem, choice);
    if (cost && (!best || *cost < *best)) best = cost;
    std::size_t u = 0;
    for (; u < choice.size(); ++u) {
      if (++choice[u] < static_cast<int>(problem.node_costs[u].size())) break;
      choice[u] = 0;
    }
    if (u == choice.size()) return best;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Problem problem;
  try {
    problem = parse_problem(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const std::invalid_argument&) {
    return 0;
  }
  if (parse_problem(to_text(problem)) != problem) std::abort();
  double choices = 1;
  for (const auto& costs : problem.node_costs) choices *= static_cast<double>(costs.size());
  if (choices > 500 || problem.edges.size() > 20) return 0;
  Solution solution;
  try {
    solution = solve(problem);
  } catch (const std::invalid_argument&) {  // the costs add up to too much
    return 0;
  }
  if (const auto best = brute_force(problem)) {
    if (solution.status != Status::kOptimal || solution.cost != *best) std::abort();
    if (cost_of(problem, solution.choice) != best) std::abort();
  } else if (solution.status != Status::kInfeasible) {
    std::abort();
  }
  return 0;
}
