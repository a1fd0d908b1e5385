// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "planner/make_plan.h"
#include "planner/value_flow.h"

namespace torchalgo::planner {

/// Whether `candidate` reads and writes in `layouts`. A border keeps the caller's layout, so a node
/// may also read the graph's inputs as they come.
[[nodiscard]] bool keeps_to(const Graph& graph, const Candidate& candidate,
                            const std::vector<Layout>& layouts);

/// The candidates that `options` leaves. A node that has none covering it alone in
/// `options.layouts` keeps all of its candidates.
/// @throws NoPlan  naming a node that no candidate covers, and what it supports.
[[nodiscard]] CandidateLists allowed_candidates(const Graph& graph, const Candidates& candidates,
                                                const PlanOptions& options);

/// Of each convolution the candidates of one primitive and layouts only: those of the cheapest
/// candidate that covers the convolution alone (any coverage where none does); ties by name, then
/// layouts. Costs that are missing count as infinite.
[[nodiscard]] CandidateLists own_fastest(const Graph& graph, const CandidateLists& allowed,
                                         const CostTable& costs);

}  // namespace torchalgo::planner
