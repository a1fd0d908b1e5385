// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "ir/candidates.h"
#include "ir/graph.h"
#include "provider/algorithm.h"

namespace torchalgo {

struct CandidateOptions {
  std::int64_t workspace_limit_bytes = std::int64_t{1}
                                       << 30;  // per node; a primitive above it is refused
  bool deterministic = false;                  // refuse what gives other bits in another run
  /// Refuse what need not be measured, see without_dominated(); on a CPU also a call that leaves
  /// the activation behind it to another one, where the same primitive applies it to its results.
  bool drop_dominated = false;
};

/// Asks every algorithm for every node, alone and with the chains it may absorb: a convolution,
/// linear, scale-shift or add with the add and activation that follow, and convolutions around a
/// depthwise one, as long as each link has one reader and is no output of the graph. Runs nothing.
[[nodiscard]] Candidates find_candidates(const Graph& graph, const Algorithms& algorithms,
                                         const Device& device,
                                         const CandidateOptions& options = {});

/// What every algorithm says of one problem.
struct ProblemOffers {
  std::vector<Primitive> primitives;
  std::vector<Traits> traits;  // of primitives[i]
  std::vector<Refusal> refusals;
};
[[nodiscard]] ProblemOffers offers_of(const Problem& problem, const Algorithms& algorithms,
                                      const Device& device, const CandidateOptions& options = {});

}  // namespace torchalgo
