// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Takes the place of csrc/base/planning.h. A program plans nothing, so it keeps no such function,
// and the linker leaves them out.

#include <cstdlib>

namespace torchalgo {

template <class Signature>
struct PlanningFunction;

template <class Result, class... Arguments>
struct PlanningFunction<Result(Arguments...)> {
  PlanningFunction() = default;
  template <class Function>
  PlanningFunction(const Function& /*function*/) {}
  Result operator()(Arguments... /*arguments*/) const { std::abort(); }
  explicit operator bool() const { return false; }
};

}  // namespace torchalgo
