// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/cost_table.h"
#include "ir/graph.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

/// The choice for one node.
struct PlanNode {
  std::string name;
  std::string problem;      // text, with the epilogue that it covers
  Primitive primitive;      // empty name: absorbed
  std::string absorbed_by;  // the anchor that computes this node, or empty
  Ticks cost = 0;
  CostSource cost_source = CostSource::kMeasured;
  std::string runner_up;  // text of the primitive in the best plan in which this node runs another
  std::optional<Ticks> regret;  // extra cost of that plan; nullopt: no other choice, or unknown
  bool operator==(const PlanNode&) const = default;
};

/// A layout change of one value. It is made once, whatever the number of readers.
struct PlanTransform {
  std::string value;     // name of the value in the graph
  std::string producer;  // name of its node, or empty for an input of the model
  std::string problem;   // transform_...
  Primitive primitive;
  Ticks cost = 0;
  bool operator==(const PlanTransform&) const = default;
};

enum class PlanStatus : std::uint8_t { kOptimal, kFeasible };

/// One primitive per node, and the layout changes between them. Status and bound refer to sums of
/// the cost table's entries.
struct Plan {
  std::string structure_hash;
  int structure_version = kStructureVersion;  // of structure_hash
  PlanStatus status = PlanStatus::kFeasible;
  Ticks cost = 0;
  Ticks lower_bound = 0;
  std::string method;                     // how the optimum was proven
  std::vector<PlanNode> nodes;            // nodes with a problem, in graph order
  std::vector<PlanTransform> transforms;  // in graph order; each hop of a change is one entry
  std::string certificate;  // proof of lower_bound, docs/pbqp.md; empty if not requested
  bool operator==(const Plan&) const = default;
};

}  // namespace torchalgo
