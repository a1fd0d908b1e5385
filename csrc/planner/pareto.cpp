// SPDX-License-Identifier: BSD-3-Clause
#include "planner/pareto.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "base/error.h"

namespace torchalgo {
namespace {

std::int64_t workspace_peak(const Plan& plan) {
  std::int64_t peak = 0;
  for (const PlanNode& node : plan.nodes) peak = std::max(peak, node.primitive.workspace_bytes);
  for (const PlanTransform& transform : plan.transforms)
    peak = std::max(peak, transform.primitive.workspace_bytes);
  return peak;
}

// Finds the points of a front one after the other by the epsilon-constraint method: each next limit
// lies just below the use of the point before.
// Source: Haimes, Lasdon & Wismer 1971, IEEE Trans. SMC 1, pp. 296-297.
class EpsilonConstraint {
 public:
  using Solve = std::function<PlanResult(std::optional<std::int64_t> limit)>;
  using UseOf = std::function<std::int64_t(const PlanResult&)>;

  EpsilonConstraint(Solve solve, UseOf use_of)
      : solve_(std::move(solve)), use_of_(std::move(use_of)) {}

  // Returns the front from the cheapest plan on. Point i + 1 also keeps limits[i], if there are
  // limits. Returns nullopt if there are more than `max_points`.
  std::optional<std::vector<FrontPoint>> run(const std::vector<std::int64_t>& limits,
                                             std::size_t max_points) {
    std::vector<FrontPoint> front;
    std::optional<FrontPoint> next = point(std::nullopt);
    for (std::size_t i = 0; next; ++i) {
      FrontPoint last = std::move(*next);
      next = below(last);
      while (next && next->plan.cost <= last.plan.cost) {  // less use at the same cost
        last = std::move(*next);
        next = below(last);
      }
      if (next && i < limits.size() && limits[i] < last.use) next = point(limits[i]);
      if (front.size() == max_points) return std::nullopt;
      front.push_back(std::move(last));
    }
    return front;
  }

 private:
  std::optional<FrontPoint> below(const FrontPoint& last) {
    if (last.use == 0) return std::nullopt;
    return point(last.use - 1);
  }

  std::optional<FrontPoint> point(std::optional<std::int64_t> limit) {
    try {
      PlanResult result = solve_(limit);
      TORCHALGO_CHECK(!result.plan.structure_hash.empty(),
                      "TA2303 pareto: {} costs are missing, the first of {} {}: measure them",
                      result.wanted.size(), result.wanted.front().primitive,
                      result.wanted.front().problem);
      const std::int64_t use = use_of_(result);
      return FrontPoint{std::move(result.plan), use};
    } catch (const NoPlan&) {
      if (!limit) throw;
    } catch (const NotInTime&) {  // the points so far remain
      if (!limit) throw;
    }
    return std::nullopt;
  }

  Solve solve_;
  UseOf use_of_;
};

// Returns limits for all points but the first, evenly spaced between the most and the least use.
std::vector<std::int64_t> evenly_spaced_limits(std::int64_t most, std::int64_t least,
                                               int max_points) {
  std::vector<std::int64_t> limits;
  for (int i = 1; i < max_points; ++i) {
    const double share = static_cast<double>(i) / (max_points - 1);
    limits.push_back(i + 1 == max_points ? least
                                         : most - static_cast<std::int64_t>(
                                                      share * static_cast<double>(most - least)));
  }
  return limits;
}

}  // namespace

std::vector<FrontPoint> workspace_front(const Graph& graph, const Candidates& candidates,
                                        const std::vector<Candidate>& transforms,
                                        const CostTable& costs, const PlanOptions& options) {
  PlanOptions limited = options;
  const auto solve = [&](std::optional<std::int64_t> limit) {
    if (limit) limited.workspace_limit_bytes = limit;
    return make_plan(graph, candidates, transforms, costs, limited);
  };
  return EpsilonConstraint(solve, [](const PlanResult& r) { return workspace_peak(r.plan); })
      .run({}, std::numeric_limits<std::size_t>::max())
      .value();
}

std::vector<FrontPoint> resource_front(const Graph& graph, const Candidates& candidates,
                                       const std::vector<Candidate>& transforms,
                                       const CostTable& costs, const PlanOptions& options,
                                       int max_points) {
  TORCHALGO_CHECK(!options.resources.empty(),
                  "TA2501 pareto: got no resource, expected one beside the time");
  TORCHALGO_CHECK(max_points >= 2, "TA2501 pareto: max_points={}, expected 2 or more", max_points);
  PlanOptions limited = options;
  const auto solve = [&](std::optional<std::int64_t> limit) {
    if (limit) limited.resources[0].limit = *limit;
    return make_plan(graph, candidates, transforms, costs, limited);
  };
  EpsilonConstraint method(solve, [](const PlanResult& r) { return r.use[0]; });
  if (auto all = method.run({}, max_points)) return *std::move(all);
  limited.resources[0].limit = options.resources[0].limit;
  const std::int64_t most = solve(std::nullopt).use[0];
  std::int64_t least = 0;
  try {
    (void)solve(-1);
  } catch (const NoPlan& error) {
    least = error.least_use.value_or(0);
  } catch (const NotInTime&) {  // it stays 0, which is a bound
  }
  limited.resources[0].limit = options.resources[0].limit;
  return method.run(evenly_spaced_limits(most, least, max_points), max_points).value();
}

}  // namespace torchalgo
