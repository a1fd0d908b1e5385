// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "torchscript/plan_fit.h"

namespace torchalgo {

/// A part of a buffer: from `channel` on.
struct BufferPart {
  int buffer = -1;  // index of ConcatSlots::buffers
  std::int64_t channel = 0;
  bool operator==(const BufferPart&) const = default;
};

/// The buffers that a plan's view.concat need, and who writes where.
struct ConcatSlots {
  std::vector<std::vector<std::int64_t>> buffers;         // sizes in memory
  std::map<std::pair<int, Layout>, BufferPart> of_value;  // where to write a value in a layout
  std::map<int, int> buffer_of;  // by node of a view.concat: the buffer that holds its result
};

/// Places what the plan's view.concat read, by ir/concat_frames.h. A frame lies inside another one
/// where the plan makes a view of both; otherwise it is a buffer, as large as what is read of it.
/// A view.concat that the graph's frames do not provide for has no part here: it copies.
[[nodiscard]] ConcatSlots concat_slots(const Graph& graph, const FittedPlan& plan);

}  // namespace torchalgo
