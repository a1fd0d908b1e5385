// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "profiler/caches.h"
#include "profiler/check.h"
#include "profiler/measure.h"
#include "profiler/timer.h"

namespace torchalgo {

/// A task with all that it needs to run, made before any time is taken.
class Bench {
 public:
  virtual ~Bench() = default;
  /// Refers to the bench.
  [[nodiscard]] virtual const Runnable& work() const = 0;
};

/// As inside a network on a CPU, where one run is like the next whatever other benches run between
/// them: the inputs were written just now, the weights lie where `weights` says, or farther away,
/// result and workspace are allocated anew.
[[nodiscard]] std::unique_ptr<Bench> make_warm_bench(Kernel kernel, const Sample& sample,
                                                     WeightsIn weights);

/// Tensors that several cold benches of one call read or write in turn.
class SharedTensors {
 public:
  /// At least `count` tensors that `make` makes, the same ones for the same key.
  [[nodiscard]] std::vector<at::Tensor> get(const std::string& key, std::size_t count,
                                            const std::function<at::Tensor()>& make);
  /// At least `bytes`; undefined if 0.
  [[nodiscard]] at::Tensor workspace(std::int64_t bytes, at::Device device);

 private:
  std::map<std::string, std::vector<at::Tensor>> tensors_;
  at::Tensor workspace_;
};

/// Every run finds its inputs, weights and result in other buffers than the runs before it, as many
/// as pass a cache of `cache_bytes` twice. All are allocated ahead, but for algorithms that make
/// their result themselves.
[[nodiscard]] std::unique_ptr<Bench> make_cold_bench(Kernel kernel, const Sample& sample,
                                                     std::int64_t cache_bytes,
                                                     SharedTensors& shared);

}  // namespace torchalgo
