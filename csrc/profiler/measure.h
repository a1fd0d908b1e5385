// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/algorithm.h"
#include "ir/primitive.h"
#include "ir/problem.h"
#include "profiler/announce.h"
#include "profiler/calm.h"
#include "profiler/timer.h"

namespace torchalgo {

struct MeasureOptions {
  int warmup = 2;          // runs that are not recorded
  int rounds = 9;          // samples per primitive, taken in turn with the others
  double budget_s = 0.25;  // for all rounds together; at least 3 rounds run
  // The tasks race (race.h). A task is not sampled any more if it is clearly slower than another
  // one of its problem and layouts, or far slower than the fastest of all. A noisy task is sampled
  // up to 3 x `rounds` times. Disturbed samples are dropped if enough others are left.
  bool race = false;
  // Bytes of the network's weights, which are read between two uses of a weight. Up to the size of
  // a core's L2, weights stay in the caches. Up to kLargeCacheBytes, weights are evicted from L2
  // before each sample, and above it from all caches. On CUDA, all tensors rotate through twice the
  // GPU's L2. kChangedWeights: the weights of a model that is trained. Each sample packs them.
  std::int64_t cold_bytes = 48 << 20;
  std::uint64_t seed = 0;
  Device device = {};            // where it runs; the CPU by default
  bool control = false;          // time the first task twice, as two tasks
  std::shared_ptr<Calm> calm;    // for a race; null: host_calm(), none on CUDA
  Announce announce;             // with a task's index before it is packed, warmed up or sampled
  std::shared_ptr<Timer> timer;  // null: host_timer() or cuda_timer()
};

/// The times of one primitive in ns, in the order taken, or the reason why it could not be
/// measured.
struct Measurement {
  std::vector<double> ns;
  std::string failure;
  std::string method;  // of the stopwatch, see Stopwatch::method
  // The result of the control, which is the same for all tasks of a call: the median time of the
  // second copy of the first task over that of the first copy. A difference from 1 is noise. 0
  // without a control.
  double control_ratio = 0;
  int disturbed = 0;  // samples of a race that were dropped
};

/// One primitive on one problem, to be timed.
struct Task {
  Problem problem;
  Primitive primitive;
};

/// Times `primitive` on random data of `problem`'s shape.
[[nodiscard]] Measurement measure(const Problem& problem, const Primitive& primitive,
                                  const Algorithms& algorithms, const MeasureOptions& options = {});

/// Times several tasks that compete for the same operation of a network. It takes their samples in
/// interleaved rounds, so that a slow phase of the machine affects all alike. results[i] belongs to
/// tasks[i].
/// @throws Error  if the device is only described, or is a GPU and torch has no CUDA.
[[nodiscard]] std::vector<Measurement> measure_interleaved(const std::vector<Task>& tasks,
                                                           const Algorithms& algorithms,
                                                           const MeasureOptions& options = {});

}  // namespace torchalgo
