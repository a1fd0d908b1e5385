// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "planner/constrained_solve.h"
#include "planner/encode.h"
#include "planner/make_plan.h"

namespace torchalgo::planner {

/// Checks the resources of PlanOptions.
/// @throws Error  if there are more resources than are possible, or if the use of one does not fit
/// `candidates` or is negative somewhere.
void check_resources(const Candidates& candidates, const std::vector<Resource>& resources);

/// Sets PricedCandidate::use. `priced` points into `candidates`.
void add_resource_use(const Candidates& candidates, const std::vector<Resource>& resources,
                      PricedLists& priced);

/// Returns the limits, and the use of each alternative of each variable.
[[nodiscard]] Constraints constraints_of(const Model& model, const Encoding& encoding,
                                         const std::vector<Resource>& resources);

/// Returns the use of each resource by the candidates of `plan`.
[[nodiscard]] std::vector<std::int64_t> resource_use_of(const Graph& graph,
                                                        const Candidates& candidates,
                                                        const std::vector<Resource>& resources,
                                                        const Plan& plan);

/// Returns true if each use is at most its resource's limit.
[[nodiscard]] bool keeps_limits(const std::vector<std::int64_t>& uses,
                                const std::vector<Resource>& resources);

/// Returns the use of each resource by a choice.
[[nodiscard]] ResourceUse resource_use_of(const Model& model, const Encoding& encoding,
                                          const std::vector<int>& choice);

/// Returns an error text that names the nodes with the largest use of
/// resources[infeasible_resource]. The uses are those of `least_use_choice`, which uses least of
/// this resource. If `within_others` is true, the text adds that the limits of the other resources
/// hold as well.
[[nodiscard]] std::string explain_infeasible_resource(const Model& model, const Encoding& encoding,
                                                      const std::vector<Resource>& resources,
                                                      std::size_t infeasible_resource,
                                                      bool within_others,
                                                      const std::vector<int>& least_use_choice);

}  // namespace torchalgo::planner
