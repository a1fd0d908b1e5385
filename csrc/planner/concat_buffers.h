// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "ir/schedule.h"
#include "planner/plan_fit.h"

namespace torchalgo {

/// The buffers that the view.concat of a plan need, and the part into which each input is written.
struct ConcatBuffers {
  std::vector<std::vector<std::int64_t>> buffers;         // sizes in memory
  std::map<std::pair<int, Layout>, BufferPart> of_value;  // where to write a value in a layout
  std::map<int, int> buffer_of;  // by node of a view.concat: the buffer of its result
};

/// Assigns buffers to the inputs of the plan's view.concat, following ir/concat_frames.h. A frame
/// lies inside another frame if the plan makes both of them views. Otherwise it is a buffer of its
/// own, which holds only the channels that are read. A view.concat without a frame gets no buffer,
/// so it copies.
[[nodiscard]] ConcatBuffers concat_buffers(const Graph& graph, const FittedPlan& plan);

}  // namespace torchalgo
