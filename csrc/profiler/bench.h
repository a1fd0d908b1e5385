// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

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
  [[nodiscard]] virtual std::int64_t packed_bytes() const = 0;
  /// From now on each run finds other weights, one of `copies` + 1.
  virtual void rotate_weights(std::int64_t copies) = 0;
  /// From now on each run finds its weights in no cache.
  virtual void flush_weights() = 0;
};

/// As inside a network on a CPU: the inputs were written just now, the weights were last used one
/// inference ago, result and workspace are allocated anew.
[[nodiscard]] std::unique_ptr<Bench> make_warm_bench(const Task& task, const Algorithm& algorithm,
                                                     const Sample& sample);

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
/// as pass a cache of `cache_bytes` twice. All are allocated ahead, but for rows that make their
/// result themselves.
[[nodiscard]] std::unique_ptr<Bench> make_cold_bench(const Task& task, const Algorithm& algorithm,
                                                     const Sample& sample, std::int64_t cache_bytes,
                                                     SharedTensors& shared);

/// The bytes in memory of packed weights; those of a library that hides them count as 0.
[[nodiscard]] std::int64_t packed_bytes_of(const Packed& packed);

/// With memory of their own, where they have any.
[[nodiscard]] Packed copy_packed(const Packed& packed);

}  // namespace torchalgo
