// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <utility>

#include "ir/plan.h"

namespace torchalgo {

/// The entry of a node that runs `primitive`.
inline PlanNode chosen(std::string name, std::string problem, std::string primitive,
                       Layout src = Layout::kNchw, Layout dst = Layout::kNchw) {
  PlanNode node;
  node.name = std::move(name);
  node.problem = std::move(problem);
  node.primitive = {std::move(primitive), src, dst};
  return node;
}

/// The entry of a node that the call of `anchor` computes.
inline PlanNode absorbed(std::string name, std::string problem, std::string anchor) {
  PlanNode node = chosen(std::move(name), std::move(problem), "");
  node.absorbed_by = std::move(anchor);
  return node;
}

}  // namespace torchalgo
