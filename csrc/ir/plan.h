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
  std::string problem;      // spelled with the epilogue it covers
  Primitive primitive;      // empty name: absorbed
  std::string absorbed_by;  // the anchor that computes this node, else empty
  Ticks cost = 0;
  CostSource cost_source = CostSource::kMeasured;
  std::string runner_up;  // spelled primitive of the best plan in which this node chooses otherwise
  std::optional<Ticks>
      regret;  // by how much that plan is dearer; nothing: no other choice, or not known
  bool operator==(const PlanNode&) const = default;
};

/// A layout change of one value, made once whatever the number of readers.
struct PlanTransform {
  std::string value;     // name of the value in the graph
  std::string producer;  // name of its node; empty: an input of the model
  std::string problem;   // transform_...
  Primitive primitive;
  Ticks cost = 0;
  bool operator==(const PlanTransform&) const = default;
};

/// Two choices of the plan that cost more, or less, beside each other than alone.
struct PlanPair {
  PairKey key;
  Ticks cost = 0;
  bool operator==(const PlanPair&) const = default;
};

enum class PlanStatus : std::uint8_t { kOptimal, kFeasible };

/// One primitive per node, and where transforms stand. Optimal and bound speak of the additive cost
/// table.
struct Plan {
  std::string structure_hash;
  int structure_version = kStructureVersion;  // of structure_hash
  PlanStatus status = PlanStatus::kFeasible;
  Ticks cost = 0;
  Ticks lower_bound = 0;
  std::string method;                     // how the optimum was proven
  std::vector<PlanNode> nodes;            // nodes with a problem, in graph order
  std::vector<PlanTransform> transforms;  // in graph order; a multi-hop change is several
  std::vector<PlanPair> pairs;            // of the cost table, where both choices are the plan's
  std::string certificate;  // proof of lower_bound, docs/pbqp.md; empty: not asked for
  bool operator==(const Plan&) const = default;
};

}  // namespace torchalgo
