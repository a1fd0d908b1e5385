// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torchalgo {

/// How often a convolution of the public op, or of unmodified code while it is enabled, ran what.
struct RecordedRun {
  std::string problem;
  std::string primitive;  // name; "auto" where PyTorch chose
  std::string step;       // of the fallback chain: to_string(Step); "free" where nothing was asked
  std::int64_t count = 0;
  bool operator==(const RecordedRun&) const = default;
};

/// Whether runs are counted; process-wide, off at the start: it costs a lock per convolution.
/// Returns the old value.
bool set_recording(bool recording);
[[nodiscard]] bool is_recording();

/// Since the start or the last reset, sorted by problem, primitive, step.
[[nodiscard]] std::vector<RecordedRun> recorded_runs();
void reset_recorded_runs();
void record_run(std::string_view problem, std::string_view primitive, std::string_view step);

}  // namespace torchalgo
