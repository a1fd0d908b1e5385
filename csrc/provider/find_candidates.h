// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/algorithm.h"
#include "ir/candidates.h"
#include "ir/graph.h"

namespace torchalgo {

struct CandidateOptions {
  std::int64_t workspace_limit_bytes = std::int64_t{1}
                                       << 30;  // per node; a primitive above it is refused
  bool deterministic = false;                  // refuse primitives whose bits vary from run to run
  /// Refuse primitives that need not be measured, see without_dominated(). On a CPU, also leave out
  /// a candidate whose activation would run as a separate call, if the same primitive can absorb
  /// the activation.
  bool drop_dominated = false;
  bool coarse_types = false;     // list primitives that store data in coarser types
  bool runtime_compiled = true;  // false: refuse what is compiled when it first runs
  bool all_knobs = false;        // true: knobs of cuDNN that it does not propose are not dominated
  std::vector<std::string> named = {};  // patterns of matches_name() that are not dominated
};

/// Returns the candidates of every algorithm for every node and for every chain that starts at it.
/// fuse() decides which nodes become a chain: for example a convolution with the addition and the
/// activation behind it, or the convolutions around a depthwise one. Each value inside a chain has
/// one reader and is not an output of the graph. Nothing is run.
[[nodiscard]] Candidates find_candidates(const Graph& graph, const Algorithms& algorithms,
                                         const Device& device,
                                         const CandidateOptions& options = {});

/// The answers of all algorithms to one problem.
struct ProblemOffers {
  std::vector<Primitive> primitives;
  std::vector<Traits> traits;  // of primitives[i]
  std::vector<Refusal> refusals;
};
[[nodiscard]] ProblemOffers offers_of(const Problem& problem, const Algorithms& algorithms,
                                      const Device& device, const CandidateOptions& options = {});

}  // namespace torchalgo
