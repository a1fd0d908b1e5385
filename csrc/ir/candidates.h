// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

/// A primitive that computes a chain of nodes in one call.
struct Candidate {
  std::vector<int>
      covers;       // nodes; the first is the anchor, each later one reads the one before it
  Problem problem;  // the anchor's, with the epilogue of what it covers
  Primitive primitive;
  std::vector<int>
      inputs;  // values in call order: src..., then the residual if the epilogue adds one
  bool is_componentwise = true;  // a result rounds by the values that it reads: transform_of()
  bool operator==(const Candidate&) const = default;
};

[[nodiscard]] inline Layout input_layout(const Candidate& candidate) {
  return input_layout(candidate.problem, candidate.primitive);
}
[[nodiscard]] inline Layout result_layout(const Candidate& candidate) {
  return result_layout(candidate.problem, candidate.primitive);
}

/// The reason why an algorithm does not offer a problem.
struct Refusal {
  std::string problem;
  std::string primitive;
  std::string reason;
  bool operator==(const Refusal&) const = default;
};

/// The candidates that the planner chooses from. Each node with a problem is the anchor of at least
/// one candidate that covers it alone in nchw, so a plan always exists.
struct Candidates {
  std::vector<std::vector<Candidate>> by_anchor;  // one list per node; empty for opaque nodes
  std::vector<std::vector<Refusal>> refusals;     // one list per node
};

}  // namespace torchalgo
