// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torchalgo {

/// One call of a planned op, or of an op that is left to PyTorch. Layer and problem name a planned
/// op within a plan: a node, or, if the problem is a transform, the value whose layout it changes.
/// They are empty for an op that is left to PyTorch. Such ops are timed only by a GraphRunner.
struct OpTime {
  std::string layer;
  std::string problem;
  std::int64_t start_ns = 0;  // steady clock
  std::int64_t end_ns = 0;
  int node = -1;  // of an op that is left to PyTorch: its position in the graph of forward
};

/// Sets whether calls of ops are timed. Returns the old value. The setting is process-wide and off
/// at the start. If it is off, a call of a planned op reads one flag. If it is on, a call reads the
/// clock twice and keeps a record, up to 2^20 records. A call does not wait for the GPU.
bool set_op_timing(bool timing);
[[nodiscard]] bool is_op_timing();

/// Returns the records since the last call, in the order in which the ops ended, and deletes them.
[[nodiscard]] std::vector<OpTime> take_op_times();
void record_op_time(OpTime time);

}  // namespace torchalgo
