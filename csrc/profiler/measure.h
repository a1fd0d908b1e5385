// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/primitive.h"
#include "ir/problem.h"
#include "profiler/announce.h"
#include "profiler/calm.h"
#include "profiler/timer.h"
#include "provider/algorithm.h"

namespace torchalgo {

struct MeasureOptions {
  int warmup = 2;          // runs that are not recorded
  int rounds = 9;          // samples per primitive, taken in turn with the others
  double budget_s = 0.25;  // for all rounds together: fewer rounds if they last longer, at least 3
  // The tasks race: one that is clearly slower than another of its problem and layouts, or far
  // slower than the fastest of all, is sampled no more (see race.h), one that is noisy up to 3 x
  // `rounds` times. Samples that something else disturbed are dropped where enough others are left.
  bool race = false;
  // What the network's weights take: so much passes between two uses of a weight. Up to a core's L2
  // nothing is done; up to kLargeCacheBytes weights are pushed out of L2 before each sample, with
  // more out of all caches. On CUDA everything rotates, through twice the GPU's L2.
  std::int64_t cold_bytes = 48 << 20;
  std::uint64_t seed = 0;
  Device device = {};            // where it runs; by itself the CPU
  bool control = false;          // time the first task a second time, as if it were another
  std::shared_ptr<Calm> calm;    // of a race; null: host_calm(), or on CUDA none
  Announce announce;             // with a task's index before it is packed, warmed up or sampled
  std::shared_ptr<Timer> timer;  // null: the device's, host_timer() or cuda_timer()
};

/// Times of one primitive in ns, in the order taken; or why it could not be measured.
struct Measurement {
  std::vector<double> ns;
  std::string failure;
  std::string method;  // how time was taken, see Stopwatch::method
  // Of the call, if it had a control: the median of the first task's second samples over that of
  // its first ones. What differs from 1 is noise. 0: there was none.
  double control_ratio = 0;
  int disturbed = 0;  // samples of a race that were dropped
};

/// What to time: one primitive on one problem.
struct Task {
  Problem problem;
  Primitive primitive;
};

/// Runs `primitive` on random data of `problem`'s shape.
[[nodiscard]] Measurement measure(const Problem& problem, const Primitive& primitive,
                                  const Algorithms& algorithms, const MeasureOptions& options = {});

/// The same for several tasks that compete for one place in a network, in interleaved rounds, so
/// that a slow phase of the machine hits all alike. results[i] belongs to tasks[i].
/// @throws Error  if the device is only described, or is a GPU and torch has no CUDA.
[[nodiscard]] std::vector<Measurement> measure_interleaved(const std::vector<Task>& tasks,
                                                           const Algorithms& algorithms,
                                                           const MeasureOptions& options = {});

}  // namespace torchalgo
