// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "planner/make_plan.h"
#include "planner/value_flow.h"

namespace torchalgo::planner {

/// Returns true if `candidate` reads and writes in `layouts`. The graph's inputs keep the caller's
/// layout, so a node may read these in any layout.
[[nodiscard]] bool keeps_to(const Graph& graph, const Candidate& candidate,
                            const std::vector<Layout>& layouts);

/// Returns the candidates that `options` allows. A node without a candidate that covers it alone in
/// `options.layouts` keeps all of its candidates.
/// @throws NoPlan  naming a node that no candidate covers, and what it supports.
[[nodiscard]] CandidateLists allowed_candidates(const Graph& graph, const Candidates& candidates,
                                                const PlanOptions& options);

/// Returns, for each convolution, only the candidates with the primitive and layouts of its
/// cheapest candidate. That is the cheapest one that covers the convolution alone, if there is one.
/// Ties go by name, then layouts. Missing costs count as infinite.
[[nodiscard]] CandidateLists own_fastest(const Graph& graph, const CandidateLists& allowed,
                                         const CostTable& costs);

}  // namespace torchalgo::planner
