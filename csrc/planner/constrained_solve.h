// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "pbqp/solve.h"
#include "planner/resource_use.h"

namespace torchalgo::planner {

/// Limits on the resources of a choice beside its cost: bytes of packed weights, an error.
struct Constraints {
  std::vector<std::vector<ResourceUse>> use;  // >= 0, per node and value as node_costs
  ResourceUse limit = {};                     // of the sum over the nodes
};

struct ConstrainedSolution {
  pbqp::Solution solution;  // status and bound hold within the limits; no certificate
  ResourceUse use = {};     // of its choice
  /// If the least possible use of one resource exceeds its limit: a choice with that least use, and
  /// the resource. Empty if the problem has no choice at all, or if each limit alone can be kept.
  std::vector<int> least_use_choice;
  std::size_t infeasible_resource = 0;
};

/// Finds the cheapest choice whose sums of resource use keep the limits: a resource-constrained
/// PBQP. The result always has a proven lower bound, also when the time is up.
///
/// The solver for PBQPs knows no limits on sums. So the method solves problems without limits, in
/// which each unit of a resource has a price, and closes the gap that remains.
///
/// 1. *Lagrangian relaxation.* For prices m >= 0 (the Lagrange multipliers), the Lagrangian of a
///    choice is cost + m * (use - limit). It is a PBQP without limits, since m * use is added to
///    the cost of each value. A choice that keeps the limits has use <= limit, so that its
///    Lagrangian is at most its cost: the least Lagrangian is a lower bound on the cost that is
///    sought.
/// 2. *Lagrangian dual by column generation.* The prices with the highest bound are the dual values
///    of a small linear program, the master problem (master_problem.h). Its columns are the choices
///    seen so far. Each step solves the relaxation at the present prices and adds the choice found,
///    until no choice improves the master problem. A choice on the way that keeps the limits may
///    become the incumbent, the best one known.
/// 3. *Fixing by marginals.* The relaxation's min-marginal of a value is the least Lagrangian of
/// the
///    choices with this value. If the bound that follows is not below the incumbent's cost, the
///    value is forbidden: no better choice has it.
/// 4. *Elimination with labels.* The values that are left are often few. Bucket elimination finds
///    the best choice if its tables hold, instead of one cost, all (cost, use) labels that do not
///    dominate each other (label_elimination.h), as in the shortest path problem with resource
///    constraints.
/// 5. *Branch and bound.* If the tables grow too large, the problem is split at one node into
/// values
///    with low and with high use, and the subproblem with the lowest bound is treated next.
///
/// @param label_cap  of the labels in one elimination; 0: only branch and bound.
/// @throws Error  if the sum of all uses or costs leaves no room in 62 bits.
/// Sources: Handler & Zang 1980, Networks 10, pp. 293-309 (steps 1, 2 and closing the gap, for
/// shortest paths); Dantzig & Wolfe 1960, Operations Research 8, pp. 101-111 (step 2).
[[nodiscard]] ConstrainedSolution solve_constrained(const pbqp::Problem& problem,
                                                    const Constraints& constraints,
                                                    double time_limit_s,
                                                    std::int64_t label_cap = 300'000);

}  // namespace torchalgo::planner
