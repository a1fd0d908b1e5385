// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "planner/sample.h"

namespace torchalgo::planner_test {

/// May this candidate be used? As PlanOptions::allow.
using Usable = std::function<bool(const Candidate&)>;

/// The least cost over every choice of candidates, by enumeration: all nodes computed once, each
/// value's transforms the cheapest tree over all assignments of sources to layouts. Shares no code
/// with the planner. Nothing: no choice exists.
[[nodiscard]] std::optional<Ticks> least_cost(const Sample& sample, const Usable& usable = nullptr);

/// What a candidate takes of two things of which there is only so much.
using Amounts = std::array<std::int64_t, 2>;

/// The same over the choices whose sums of `use` are at most `limit`.
[[nodiscard]] std::optional<Ticks> least_cost_within(
    const Sample& sample, const std::function<Amounts(const Candidate&)>& use,
    const Amounts& limit);

/// Carries `plan` out on the layouts of the values: every node is computed once, every layout that
/// is read exists, transforms start from a layout that exists. Returns the sum of what was used, by
/// the cost table; nothing, with the reason in `why`, if the plan is wrong.
[[nodiscard]] std::optional<Ticks> replay(const Sample& sample, const Plan& plan, std::string& why);

}  // namespace torchalgo::planner_test
