// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/primitive.h"
#include "ir/problem.h"
#include "provider/algorithm.h"

namespace torchalgo {

struct MeasureOptions {
  int warmup = 2;          // runs that are not recorded
  int rounds = 9;          // samples per primitive, taken in turn with the others
  double budget_s = 0.25;  // for all rounds together: fewer rounds if they last longer, at least 3
  // Weights rotate, all tasks together, through this much: what else runs between two uses in a
  // network.
  std::int64_t cold_bytes = 48 << 20;
  std::uint64_t seed = 0;
  std::function<std::int64_t()> now_ns;  // null: the steady clock
};

/// Times of one primitive in ns, in the order taken; or why it could not be measured.
struct Samples {
  std::vector<double> ns;
  std::string failure;
};

/// What to time: one primitive on one problem.
struct Task {
  Problem problem;
  Primitive primitive;
};

/// Runs `primitive` on random data of `problem`'s shape.
[[nodiscard]] Samples measure(const Problem& problem, const Primitive& primitive,
                              const Algorithms& algorithms, const MeasureOptions& options = {});

/// The same for several tasks that compete for one place in a network, in interleaved rounds, so
/// that a slow phase of the machine hits all alike. results[i] belongs to tasks[i].
[[nodiscard]] std::vector<Samples> measure_interleaved(const std::vector<Task>& tasks,
                                                       const Algorithms& algorithms,
                                                       const MeasureOptions& options = {});

}  // namespace torchalgo
