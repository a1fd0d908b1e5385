// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "planner/make_plan.h"

namespace torchalgo {

/// A plan that no other one undercuts in cost without taking more of something.
struct FrontPoint {
  Plan plan;
  std::int64_t use = 0;
};

/// The cheapest plan for each peak of workspace: `use` is the most bytes that any primitive of the
/// plan takes, transforms included. Cheapest first; no point is dominated. Exact if all plans are
/// optimal: each next one keeps below the peak of the one before, so no peak is left out.
/// @throws Error  as make_plan, or if `costs` lacks some.
[[nodiscard]] std::vector<FrontPoint> workspace_front(const Graph& graph,
                                                      const Candidates& candidates,
                                                      const std::vector<Candidate>& transforms,
                                                      const CostTable& costs,
                                                      const PlanOptions& options = {});

/// The same for the sum of options.resources[0], whose limit is where the front starts; another
/// one's limit holds for all points. Sums are many
/// where peaks are few: of more than `max_points` points (>= 2), that many are taken, evenly spread
/// over the uses and both ends among them. Each is still a point of the whole front.
[[nodiscard]] std::vector<FrontPoint> resource_front(const Graph& graph,
                                                     const Candidates& candidates,
                                                     const std::vector<Candidate>& transforms,
                                                     const CostTable& costs,
                                                     const PlanOptions& options, int max_points);

}  // namespace torchalgo
