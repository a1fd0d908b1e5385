// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>

namespace torchalgo {

/// A function that planning and measuring call. Programs of one network have another
/// base/planning.h.
template <class Signature>
using PlanningFunction = std::function<Signature>;

}  // namespace torchalgo
