// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace torchalgo {

/// Tells samples during which something else used the processor, or slowed it down, from others.
class Calm {
 public:
  virtual ~Calm() = default;
  /// Before a sample.
  virtual void begin() = 0;
  /// Whether this process had the processor since begin().
  [[nodiscard]] virtual bool was_alone() = 0;
  /// Whether the processor is now as fast as it recently was.
  [[nodiscard]] virtual bool is_steady() = 0;
};

/// Judges by the involuntary context switches of this process, and by what a fixed chain of
/// dependent multiplications takes, which only the clock's frequency or another user of this core
/// can change.
///
/// @param preemptions  null: of this process, from getrusage.
/// @param beat_ns      what the chain took; null: runs it, some 20 us.
[[nodiscard]] std::shared_ptr<Calm> host_calm(std::function<std::int64_t()> preemptions = nullptr,
                                              std::function<double()> beat_ns = nullptr);

}  // namespace torchalgo
