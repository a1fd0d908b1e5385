// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace torchalgo {

/// Detects samples that were disturbed by another process or by a change of clock frequency.
class Calm {
 public:
  virtual ~Calm() = default;
  /// Marks the start of a sample.
  virtual void begin() = 0;
  /// Returns true if no other process took the processor from this one since begin().
  [[nodiscard]] virtual bool was_alone() = 0;
  /// Returns true if the processor is now as fast as it recently was.
  [[nodiscard]] virtual bool is_steady() = 0;
};

/// Returns the detector for this machine's CPU. It counts the involuntary context switches of this
/// process, and times a fixed chain of dependent multiplications. Only the clock frequency or
/// another user of the core changes the time of this chain.
///
/// @param preemptions  returns the number of context switches; null: getrusage for this process.
/// @param beat_ns  returns the time of the chain in ns; null: runs the chain, about 20 us.
[[nodiscard]] std::shared_ptr<Calm> host_calm(std::function<std::int64_t()> preemptions = nullptr,
                                              std::function<double()> beat_ns = nullptr);

}  // namespace torchalgo
