// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace torchalgo {

/// Channels from `channel` on of a frame: the memory of one concatenation's result. A frame is
/// named by that concatenation's node.
struct FramePlace {
  int frame = -1;
  std::int64_t channel = 0;
  bool operator==(const FramePlace&) const = default;
};

/// Which concatenations may be done by their inputs' writers, in one blocked layout.
struct ConcatFrames {
  std::vector<std::optional<FramePlace>> of_value;   // where it is to be written; by value
  std::vector<std::optional<FramePlace>> of_concat;  // the range that is its result; by node
};

/// Gives every value at most one place, from the graph alone: who lists candidates and who rewrites
/// the graph get the same answer.
///
/// A concatenation of n = 1 is a view where each input starts at a block, so that its part of the
/// memory is contiguous and no two writers meet in a block. The largest come first (of equal ones
/// the later in the graph): one whose inputs have no place yet opens a frame; one whose inputs lie
/// side by side in another's frame (dense blocks: each list of inputs begins the next) is a range
/// of that; any other is no view. A result that is itself an input of a larger one has a place
/// there, into which its own frame may be put.
///
/// Left out as well: equal inputs, and values that a view could bring into the layout
/// (ir/view.h), since these lie elsewhere and nothing would write their part.
[[nodiscard]] ConcatFrames concat_frames(const Graph& graph, Layout layout);

}  // namespace torchalgo
