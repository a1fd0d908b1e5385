// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchalgo {

/// One call of a planned op. Layer and problem name the op within a plan: a node, or, if the
/// problem is a transform, the value whose layout it changes.
struct OpTime {
  std::string layer;
  std::string problem;
  std::int64_t start_ns = 0;  // steady clock
  std::int64_t end_ns = 0;
};

/// Sets whether calls of planned ops are timed. The setting is process-wide and off at the start;
/// then a call reads one flag. If it is on, a call reads the clock twice and keeps a record; at
/// most 2^20 are kept. A call does not wait for the GPU. Returns the old value.
bool set_op_timing(bool timing);
[[nodiscard]] bool is_op_timing();

/// Returns the records since the last call, in the order in which the ops ended, and forgets them.
[[nodiscard]] std::vector<OpTime> take_op_times();
void record_op_time(OpTime time);

}  // namespace torchalgo
