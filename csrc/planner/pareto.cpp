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

// Plans under a falling limit.
class Descent {
 public:
  using Step = std::function<PlanResult(std::optional<std::int64_t> limit)>;  // throws NoPlan
  using UseOf = std::function<std::int64_t(const PlanResult&)>;

  Descent(Step step, UseOf use_of) : step_(std::move(step)), use_of_(std::move(use_of)) {}

  // The front from the top, `limits[i]` below point i where there are limits; at most `max_points`.
  // Nothing if there are more.
  std::optional<std::vector<FrontPoint>> run(const std::vector<std::int64_t>& limits,
                                             std::size_t max_points) {
    std::vector<FrontPoint> front;
    std::optional<FrontPoint> next = point(std::nullopt);
    for (std::size_t i = 0; next; ++i) {
      FrontPoint last = std::move(*next);
      next = below(last);
      while (next && next->plan.cost <= last.plan.cost) {  // leaner for nothing
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
      PlanResult result = step_(limit);
      TORCHALGO_CHECK(!result.plan.structure_hash.empty(),
                      "pareto: {} costs are missing, the first of {} {}", result.wanted.size(),
                      result.wanted.front().primitive, result.wanted.front().problem);
      const std::int64_t use = use_of_(result);
      return FrontPoint{std::move(result.plan), use};
    } catch (const NoPlan&) {
      if (!limit) throw;
      return std::nullopt;
    }
  }

  Step step_;
  UseOf use_of_;
};

// Limits that spread `max_points` points evenly over the uses, the first point excepted.
std::vector<std::int64_t> spread(std::int64_t most, std::int64_t least, int max_points) {
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
  const auto step = [&](std::optional<std::int64_t> limit) {
    if (limit) limited.workspace_limit_bytes = limit;
    return make_plan(graph, candidates, transforms, costs, limited);
  };
  return Descent(step, [](const PlanResult& r) { return workspace_peak(r.plan); })
      .run({}, std::numeric_limits<std::size_t>::max())
      .value();
}

std::vector<FrontPoint> resource_front(const Graph& graph, const Candidates& candidates,
                                       const std::vector<Candidate>& transforms,
                                       const CostTable& costs, const PlanOptions& options,
                                       int max_points) {
  TORCHALGO_CHECK(!options.resources.empty(), "pareto: a front needs a resource");
  TORCHALGO_CHECK(max_points >= 2, "pareto: max_points is {}, expected 2 or more", max_points);
  PlanOptions limited = options;
  const auto step = [&](std::optional<std::int64_t> limit) {
    if (limit) limited.resources[0].limit = *limit;
    return make_plan(graph, candidates, transforms, costs, limited);
  };
  Descent descent(step, [](const PlanResult& r) { return r.use[0]; });
  if (auto all = descent.run({}, max_points)) return *std::move(all);
  limited.resources[0].limit = options.resources[0].limit;
  const std::int64_t most = step(std::nullopt).use[0];
  std::int64_t least = 0;
  try {
    (void)step(-1);
  } catch (const NoPlan& error) {
    least = error.least_use.value_or(0);
  }
  limited.resources[0].limit = options.resources[0].limit;
  return descent.run(spread(most, least, max_points), max_points).value();
}

}  // namespace torchalgo
