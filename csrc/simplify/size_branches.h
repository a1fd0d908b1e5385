// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Replaces each branch whose condition follows from sizes of the inputs, types and constants by
/// the block that a run on `arguments` takes. An op `torchalgo::take_branch` stays in its place. It
/// raises an error in a call that would take the other block, so no result is wrong. Branches
/// inside of others follow when the outer one is replaced.
///
/// @return  true if the graph has changed.
bool resolve_size_branches(const script::Graph& graph, const std::vector<c10::IValue>& arguments);

/// Inserts a check in front of `before`: a call fails, and the sizes are pinned, unless dimension
/// `dim` of `tensor` is `size`.
void pin_size(script::Value tensor, std::int64_t dim, std::int64_t size, script::Node before);

/// Removes slices such as x[:, :, :h] that take everything in the run, where `h` is computed from
/// sizes. As above, a check stays. Does so only if such a check of a branch is in the graph: its
/// sizes are pinned then anyway.
///
/// @param seen  the tensors of a run of this graph.
/// @return  true if the graph has changed.
bool remove_whole_slices(const script::Graph& graph, const SeenTensors& seen);

}  // namespace torchalgo
