// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "planner/encode.h"
#include "planner/limited.h"
#include "planner/make_plan.h"

namespace torchalgo::planner {

/// @throws Error  if there are more resources than are possible, or if what one takes does not fit
/// `candidates`, or is negative somewhere.
void check_resources(const Candidates& candidates, const std::vector<Resource>& resources);

/// Sets PricedCandidate::use. `priced` points into `candidates`.
void add_uses(const Candidates& candidates, const std::vector<Resource>& resources,
              PricedLists& priced);

/// What each alternative of each variable takes of the resources.
[[nodiscard]] Budget budget_of(const Model& model, const Encoding& encoding,
                               const std::vector<Resource>& resources);

/// What the candidates of `plan` take of each resource.
[[nodiscard]] std::vector<std::int64_t> uses_of(const Graph& graph, const Candidates& candidates,
                                                const std::vector<Resource>& resources,
                                                const Plan& plan);

/// Whether each is at most its resource's limit.
[[nodiscard]] bool keeps_limits(const std::vector<std::int64_t>& uses,
                                const std::vector<Resource>& resources);

/// Of each resource, what the choice takes.
[[nodiscard]] Uses uses_of(const Model& model, const Encoding& encoding,
                           const std::vector<int>& choice);

/// Which nodes take most of resources[scarce] in a choice that takes least of it, for an error
/// text. The other resources, if any, are within their limits there.
[[nodiscard]] std::string explain_scarcity(const Model& model, const Encoding& encoding,
                                           const std::vector<Resource>& resources,
                                           std::size_t scarce, bool within_others,
                                           const std::vector<int>& leanest);

}  // namespace torchalgo::planner
