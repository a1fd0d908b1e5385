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
  /// Set if every choice exceeds the limit of one resource: the choice that uses it least, and the
  /// index of the resource. The choice is empty if there is no choice at all, or if each limit can
  /// be kept when the others are ignored.
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
/// 2. *Lagrangian dual by column generation.* The prices that give the highest lower bound are
///    wanted. A small linear program, the master problem (master_problem.h), has them as its dual
///    values. Its columns are the choices found so far. Each step solves the relaxation at the
///    present prices and adds the choice found, until no choice improves the master problem. A
///    choice on the way that keeps the limits may become the incumbent, the best one known.
/// 3. *Fixing by marginals.* The min-marginal of a value is the least Lagrangian among the choices
///    with this value. It is a lower bound on their cost. A value whose bound reaches the
///    incumbent's cost is forbidden, since no choice with it is better.
/// 4. *Elimination with labels.* The values that are left are often few. Bucket elimination then
///    finds the best choice. Each entry of its tables holds all (cost, use) labels that no other
///    label dominates, instead of one cost (label_elimination.h). Algorithms for shortest paths
///    with resource constraints do the same.
/// 5. *Branch and bound.* If the tables grow too large, the problem is split at one node into
///    values with low use and values with high use. The subproblem with the lowest bound is next.
///
/// @param label_cap  the most labels that one elimination may hold. With 0, only branch and bound
/// is used.
/// @throws Error  if the sum of all uses or costs leaves no room in 62 bits.
/// Sources: Handler & Zang 1980, Networks 10, pp. 293-309 (steps 1, 2 and closing the gap, for
/// shortest paths); Dantzig & Wolfe 1960, Operations Research 8, pp. 101-111 (step 2).
[[nodiscard]] ConstrainedSolution solve_constrained(const pbqp::Problem& problem,
                                                    const Constraints& constraints,
                                                    double time_limit_s,
                                                    std::int64_t label_cap = 300'000);

}  // namespace torchalgo::planner
