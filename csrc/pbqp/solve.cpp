// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/solve.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "pbqp/deadline.h"
#include "pbqp/eliminate.h"
#include "pbqp/instance.h"
#include "pbqp/reduce.h"
#include "pbqp/search.h"

namespace torchalgo::pbqp {
namespace {

struct CoreSolution {
  bool infeasible = false;  // proven
  bool found = true;        // false: some part has no choice, and `choice` means nothing
  std::vector<int> choice;
  Cost lower_bound = 0;
  std::string method;
};

std::string method_name(int branches, int parts, int width) {
  std::string name = branches > parts ? "branch and bound (" + std::to_string(branches) + " nodes)"
                                      : std::string("bound and pruning");
  if (width > 0) name += ", elimination (width " + std::to_string(width) + ")";
  return name;
}

/// Each connected part on its own: bounds add up, and branching multiplies only within one.
CoreSolution search_parts(const Instance& core, const SolveOptions& options) {
  const Deadline deadline(options.time_limit_s);
  CoreSolution solution;
  solution.lower_bound = core.constant;
  solution.choice.assign(core.nodes.size(), 0);
  const auto parts = connected_parts(core);
  int branches = 0, width = 0;
  for (const auto& nodes : parts) {
    const SearchResult part = search(part_of(core, nodes), options.table_cap, deadline);
    solution.infeasible |= part.lower_bound == kForbidden;
    solution.found &= !part.choice.empty();
    solution.lower_bound = add(solution.lower_bound, part.lower_bound);
    for (std::size_t i = 0; i < part.choice.size(); ++i) solution.choice[nodes[i]] = part.choice[i];
    branches += part.branches;
    width = std::max(width, part.width);
  }
  solution.method = method_name(branches, static_cast<int>(parts.size()), width);
  return solution;
}

CoreSolution solve_core(const Instance& core, const SolveOptions& options) {
  const auto order = find_order(core, options.table_cap);
  if (!order) return search_parts(core, options);
  const Exact exact = eliminate(core, *order);
  CoreSolution solution;
  solution.infeasible = exact.cost == kForbidden;
  solution.lower_bound = exact.cost;
  solution.choice = exact.choice;
  solution.method = core.nodes.empty() ? "R0-R2 reductions"
                                       : "elimination (width " + std::to_string(order->width) + ")";
  return solution;
}

}  // namespace

Solution solve(const Problem& problem, const SolveOptions& options) {
  check_problem(problem);
  Solution solution;
  const Reduction reduction = reduce(drop_forbidden(make_instance(problem)));
  if (reduction.infeasible) {
    solution.status = Status::kInfeasible;
    solution.lower_bound = kForbidden;
    solution.method = "R0-R2 reductions";
    return solution;
  }
  const CoreSolution core = solve_core(reduction.core, options);
  solution.method = core.method;
  solution.lower_bound = core.lower_bound;
  if (core.infeasible) {
    solution.status = Status::kInfeasible;
    solution.lower_bound = kForbidden;
  } else if (core.found) {
    solution.choice = lift(reduction, core.choice);
    solution.cost = evaluate(problem, solution.choice);
    solution.status = solution.cost == solution.lower_bound ? Status::kOptimal : Status::kFeasible;
    if (solution.cost < solution.lower_bound || solution.cost == kForbidden)
      throw std::logic_error(
          "pbqp: a choice contradicts its own bound; please report this problem");
  }
  return solution;
}

}  // namespace torchalgo::pbqp
