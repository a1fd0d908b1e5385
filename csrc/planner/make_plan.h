// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "ir/candidates.h"
#include "ir/cost_table.h"
#include "ir/graph.h"
#include "ir/plan.h"

namespace torchalgo {

/// A resource whose total use by a plan is limited: bytes of packed weights, an error.
struct Resource {
  std::string name;                            // "weight bytes", for error texts
  std::vector<std::vector<std::int64_t>> use;  // >= 0, per candidate as Candidates::by_anchor
  std::int64_t limit = 0;                      // of the sum over the plan's candidates
  double unit = 1;                             // the amount that 1 stands for, for error texts
};

/// No plan exists with the allowed candidates and within the limits. The text says where.
class NoPlan : public Error {
 public:
  using Error::Error;
  std::optional<std::int64_t>
      least_use;  // set if even the least use of a resource exceeds its limit
};

/// No plan was found within the time limit, although there may be one.
class NotInTime : public Error {
 public:
  using Error::Error;
};

/// Restrictions of the choice, for comparisons and overrides. By default everything is allowed.
struct PlanOptions {
  /// Returns true if a candidate may be used. It is called once per candidate, not for transforms.
  std::function<bool(const Candidate&)> allow;
  /// The layouts of all values but inputs and outputs; empty if all layouts are allowed. A node
  /// that runs alone in none of them is not restricted.
  std::vector<Layout> layouts;
  std::optional<std::int64_t> workspace_limit_bytes;  // of each primitive, transforms included
  /// Two at most. If one binds, the plan has no regrets and no certificate: its bound
  /// cannot be checked independently.
  std::vector<Resource> resources;
  double time_limit_s = 10.0;     // of the search for a proof, regrets included
  bool with_regrets = false;      // runner_up and regret of each node: about three times the work
  bool with_certificate = false;  // the plan carries the proof of its bound
};

struct PlanResult {
  Plan plan;
  /// Costs to measure before planning again, sorted. If costs are missing, these are listed and the
  /// plan is empty. If not, the plan's costs that are only bounds are listed; a plan without any is
  /// final.
  std::vector<CostKey> wanted;
  std::vector<std::int64_t> use;  // of each of options.resources
};

/// Makes the plan with the cheapest choice of one candidate per node and of the transforms between
/// them. The same arguments give the same plan, bit for bit, unless the time is up. Each transform
/// is paid once per value, not once per reader, and may take several hops. If no optimum is proven
/// in time, plans that keep to a single layout are tried as well, and the cheapest plan is taken.
///
/// @param transforms  primitives of layout changes, as transform_candidates lists them.
/// @throws NoPlan  if no allowed candidate covers a node, naming it and what it supports; or if the
/// allowed candidates do not fit together, or not within the limits of options.resources.
/// @throws NotInTime  if the time was over before any plan was found.
/// Source: the model is a PBQP as in Anderson & Gregg 2018, CGO, doi:10.1145/3168805, with shared
/// transforms and fused chains added (planner/encode.h).
[[nodiscard]] PlanResult make_plan(const Graph& graph, const Candidates& candidates,
                                   const std::vector<Candidate>& transforms, const CostTable& costs,
                                   const PlanOptions& options = {});

/// Returns the PBQP that make_plan solves for these arguments, as pbqp::to_text. Certificates name
/// it by its hash. docs/pbqp.md describes how it follows from a graph and costs.
/// @throws Error  as make_plan, or if `costs` lacks some.
[[nodiscard]] std::string plan_problem_text(const Graph& graph, const Candidates& candidates,
                                            const std::vector<Candidate>& transforms,
                                            const CostTable& costs,
                                            const PlanOptions& options = {});

/// Returns the layout changes that may be needed: every pair of layouts that occur at a value, for
/// each shape. `offers` returns the primitives of a transform problem.
[[nodiscard]] std::vector<Candidate> transform_candidates(
    const Graph& graph, const Candidates& candidates,
    const std::function<std::vector<Primitive>(const Problem&)>& offers);

/// Makes the plan that tuning layer by layer gives: each convolution takes its own fastest
/// primitive (ties by name), and the rest is solved around it. The fastest one is the one measured
/// on the convolution alone. If that primitive also computes longer chains, the choice among these
/// is open.
[[nodiscard]] PlanResult make_local_plan(const Graph& graph, const Candidates& candidates,
                                         const std::vector<Candidate>& transforms,
                                         const CostTable& costs, const PlanOptions& options = {});

}  // namespace torchalgo
