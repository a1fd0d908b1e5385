// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "planner/make_plan.h"

namespace torchalgo {

/// A plan of a Pareto front: no other plan costs less without more use.
struct FrontPoint {
  Plan plan;
  std::int64_t use = 0;
};

/// Returns the Pareto front of cost and peak of workspace, cheapest first. `use` is the largest
/// workspace of any primitive of the plan, transforms included. The front is complete if all its
/// plans are optimal, because each next plan keeps below the peak of the one before.
/// @throws Error  as make_plan, or if `costs` lacks some.
[[nodiscard]] std::vector<FrontPoint> workspace_front(const Graph& graph,
                                                      const Candidates& candidates,
                                                      const std::vector<Candidate>& transforms,
                                                      const CostTable& costs,
                                                      const PlanOptions& options = {});

/// Returns the Pareto front of cost and the use of options.resources[0]. The front starts at the
/// limit of this resource; the limit of a second resource holds for all points. A front of sums may
/// have thousands of points. If it has more than `max_points` (>= 2), the result has that many of
/// its points, evenly spread over the uses, with both ends among them.
[[nodiscard]] std::vector<FrontPoint> resource_front(const Graph& graph,
                                                     const Candidates& candidates,
                                                     const std::vector<Candidate>& transforms,
                                                     const CostTable& costs,
                                                     const PlanOptions& options, int max_points);

}  // namespace torchalgo
