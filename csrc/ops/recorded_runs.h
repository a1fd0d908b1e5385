// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torchalgo {

/// The primitive that a convolution ran, and how often. It counts calls of the public op, and calls
/// of unmodified code while torchalgo is enabled.
struct RecordedRun {
  std::string problem;
  std::string primitive;  // name, or "auto" if PyTorch chose
  std::string step;       // to_string(Step), or "free" if PyTorch chose
  std::int64_t count = 0;
  bool operator==(const RecordedRun&) const = default;
};

/// Sets whether runs are counted. The setting is process-wide and off at the start, since counting
/// costs a lock per convolution. Returns the old value.
bool set_recording(bool recording);
[[nodiscard]] bool is_recording();

/// Returns the runs since the start or the last reset, sorted by problem, primitive, step.
[[nodiscard]] std::vector<RecordedRun> recorded_runs();
void reset_recorded_runs();
void record_run(std::string_view problem, std::string_view primitive, std::string_view step);

}  // namespace torchalgo
