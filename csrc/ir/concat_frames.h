// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace torchalgo {

/// A position in a frame, the memory of one concatenation's result. It holds the channels of the
/// frame from `channel` on. `frame` is the node of that concatenation.
struct FramePlace {
  int frame = -1;
  std::int64_t channel = 0;
  bool operator==(const FramePlace&) const = default;
};

/// The concatenations that need no copy in one blocked layout, because their inputs can be written
/// into the result directly.
struct ConcatFrames {
  std::vector<std::optional<FramePlace>> of_value;   // by value: where to write it
  std::vector<std::optional<FramePlace>> of_concat;  // by node: the range of its result
};

/// Assigns each value at most one position. The result depends on the graph and the layout only, so
/// the search for candidates and the rewrite of the graph agree on it.
///
/// A concatenation can be a view if n = 1 and each input starts at a block. Then each input's part
/// of the memory is contiguous, and no block has two writers. Concatenations are visited from the
/// largest to the smallest, equal ones from the last to the first in the graph:
/// - If its inputs have no position yet, the concatenation opens a frame.
/// - If its inputs lie side by side in another concatenation's frame, its result is a range of that
///   frame. Dense blocks are an example: each list of inputs begins the next list.
/// - Any other concatenation is not a view.
///
/// A result that is an input of a larger concatenation has a position in that one's frame. Its own
/// frame may be put there.
///
/// A concatenation is not a view either if two of its inputs are equal, or if a view could bring an
/// input into the layout (ir/view.h). Such an input lies elsewhere, so nothing would write its
/// part.
[[nodiscard]] ConcatFrames concat_frames(const Graph& graph, Layout layout);

}  // namespace torchalgo
