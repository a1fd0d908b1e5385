// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "profiler/caches.h"
#include "profiler/check.h"
#include "profiler/measure.h"
#include "profiler/timer.h"
#include "provider/kernel.h"

namespace torchalgo {

/// A task with everything that it needs to run, allocated before anything is timed.
class Bench {
 public:
  virtual ~Bench() = default;
  /// Returns the work to time. It refers to the bench, which must outlive it.
  [[nodiscard]] virtual const Runnable& work() const = 0;
};

/// Returns a bench that runs the kernel as inside a network on a CPU. The inputs have just been
/// written. The weights lie where `weights` says, or in slower memory. Result and workspace are
/// allocated at each run. Benches that run in between do not change these conditions.
[[nodiscard]] std::unique_ptr<Bench> make_warm_bench(Kernel kernel, const Sample& sample,
                                                     WeightsIn weights);

/// Tensors that several cold benches of one call share. They use them one after the other.
class SharedTensors {
 public:
  /// Returns at least `count` copies of `tensor`. Tensors with the same values and strides have the
  /// same copies, so that the weights of primitives that pack alike are held once. A tensor that is
  /// undefined or whose memory a library hides is not copied.
  [[nodiscard]] std::vector<at::Tensor> copies_of(const at::Tensor& tensor, std::size_t count);
  /// Returns at least `count` tensors for results.
  [[nodiscard]] std::vector<at::Tensor> results(const Problem& problem, Layout layout,
                                                at::Device device, std::size_t count);
  /// Returns a workspace of at least `bytes`, or an undefined tensor if `bytes` is 0.
  [[nodiscard]] at::Tensor workspace(std::int64_t bytes, at::Device device);

 private:
  std::vector<std::vector<at::Tensor>> copies_;
  std::map<std::string, std::vector<at::Tensor>> results_;
  at::Tensor workspace_;
};

/// Returns a bench whose runs take turns with 2 to 20 sets of inputs, weights and result. There are
/// as many sets as fill a cache of `cache_bytes` twice, within this range. All are allocated in
/// advance, except results that a library allocates (Kernel::makes_dst). Of `weights` it matters
/// only whether they are kChanged: then each run packs them.
[[nodiscard]] std::unique_ptr<Bench> make_cold_bench(Kernel kernel, const Sample& sample,
                                                     WeightsIn weights, std::int64_t cache_bytes,
                                                     SharedTensors& shared);

}  // namespace torchalgo
