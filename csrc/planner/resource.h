// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "planner/encode.h"
#include "planner/limited.h"
#include "planner/make_plan.h"

namespace torchalgo::planner {

/// Sets PricedCandidate::use. `priced` points into `candidates`.
/// @throws Error  if `resource.use` does not fit `candidates`, or is negative somewhere.
void add_uses(const Candidates& candidates, const Resource& resource, PricedLists& priced);

/// What each alternative of each variable takes of a resource.
[[nodiscard]] Budget budget_of(const Model& model, const Encoding& encoding, std::int64_t limit);

/// What the choice takes of a resource.
[[nodiscard]] std::int64_t use_of(const Model& model, const Encoding& encoding,
                                  const std::vector<int>& choice);

/// Which nodes take most in a choice that takes least, for an error text.
[[nodiscard]] std::string explain_scarcity(const Model& model, const Encoding& encoding,
                                           const Resource& resource,
                                           const std::vector<int>& leanest);

}  // namespace torchalgo::planner
