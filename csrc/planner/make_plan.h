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

/// Something of which a plan may take only so much in all: bytes of packed weights, an error.
struct Resource {
  std::string name;                            // "weight bytes", for error texts
  std::vector<std::vector<std::int64_t>> use;  // >= 0, per candidate as Candidates::by_anchor
  std::int64_t limit = 0;                      // of the sum over the plan's candidates
  double unit = 1;                             // what 1 of these is, for error texts
};

/// Nothing fits together in what is allowed and within the limits; the text says where.
class NoPlan : public Error {
 public:
  using Error::Error;
  std::optional<std::int64_t> least_use;  // if even the least exceeds the limit of the resource
};

/// Restricts the choice, for comparisons and overrides; null: everything is allowed.
struct PlanOptions {
  /// May this candidate be used? Called once per candidate; transforms are not asked about.
  std::function<bool(const Candidate&)> allow;
  /// Every value in one of these layouts, borders excepted; empty: all layouts. A node that runs
  /// alone in none of them is not restricted.
  std::vector<Layout> layouts;
  std::optional<std::int64_t> workspace_limit_bytes;  // of each primitive, transforms included
  /// Two at most. Where one binds, the plan has no regrets and no certificate: its bound is the
  /// solver's word.
  std::vector<Resource> resources;
  double time_limit_s = 10.0;     // of the search for a proof, regrets included
  bool with_regrets = false;      // runner_up and regret of each node: about three times the work
  bool with_certificate = false;  // the plan carries the proof of its bound
};

struct PlanResult {
  Plan plan;
  /// Costs to measure before planning again, sorted. Missing ones leave the plan empty; else these
  /// are the mere bounds that the plan rests on, and without any it is final.
  std::vector<CostKey> wanted;
  std::vector<std::int64_t> use;  // of each of options.resources
};

/// The cheapest choice of one candidate per node and of the transforms between them. Pure: the same
/// arguments give the same plan, bit for bit, unless a time limit strikes. Each transform is paid
/// once per value, not once per reader, and may take several hops. Where no optimum is proven in
/// time, plans that keep to a single layout are tried as well and the cheapest plan is taken.
///
/// @param transforms  primitives of layout changes, as transform_candidates lists them.
/// @throws NoPlan  if `options` leave a node that no candidate covers, naming it and what it
/// supports; or if what is left does not fit together or into the limits of options.resources.
/// Source: the model is a PBQP as in Anderson & Gregg 2018, CGO, doi:10.1145/3168805, with shared
/// transforms and fused chains added (planner/encode.h).
[[nodiscard]] PlanResult make_plan(const Graph& graph, const Candidates& candidates,
                                   const std::vector<Candidate>& transforms, const CostTable& costs,
                                   const PlanOptions& options = {});

/// The PBQP that make_plan solves for these arguments, as pbqp::to_text; certificates name it by
/// its hash. docs/pbqp.md describes how it follows from a graph and costs.
/// @throws Error  as make_plan, or if `costs` lacks some.
[[nodiscard]] std::string plan_problem_text(const Graph& graph, const Candidates& candidates,
                                            const std::vector<Candidate>& transforms,
                                            const CostTable& costs,
                                            const PlanOptions& options = {});

/// The layout changes that may be needed: every pair of layouts that occur at a value, for each
/// shape. `offers` answers a transform problem with its primitives.
[[nodiscard]] std::vector<Candidate> transform_candidates(
    const Graph& graph, const Candidates& candidates,
    const std::function<std::vector<Primitive>(const Problem&)>& offers);

/// The plan that takes each convolution's own fastest primitive (ties by name) and solves the rest
/// around it: what tuning layer by layer gives. Fastest is measured on the convolution alone; where
/// that primitive also computes longer chains, these stay open.
[[nodiscard]] PlanResult make_local_plan(const Graph& graph, const Candidates& candidates,
                                         const std::vector<Candidate>& transforms,
                                         const CostTable& costs, const PlanOptions& options = {});

}  // namespace torchalgo
