// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

inline constexpr std::array<std::string_view, 4> kArithmetic = {"aten::add", "aten::sub",
                                                                "aten::mul", "aten::div"};
// Their second or third argument `dim` names one dimension.
inline constexpr std::array<std::string_view, 5> kOfOneDim = {
    "aten::slice", "aten::narrow", "aten::chunk", "aten::split", "aten::split_with_sizes"};

/// Returns true for a permute from [n, c, h, w] to [n, h, w, c].
[[nodiscard]] bool is_opening(script::Node node);

/// Returns true for a permute from [n, h, w, c] to [n, c, h, w].
[[nodiscard]] bool is_closing(script::Node node);

/// Returns the tensors that the node reads, also those of a list that it joins, without constants.
[[nodiscard]] std::vector<script::Value> sources_of(script::Node node);

/// Returns the tensors of a graph that hold their channels in the last dimension and can be
/// computed with the channels in dimension 1: images [n, h, w, c] and tokens [n, t, c]. They are
/// connected parts of the network: results of openings, and of ops that read such a tensor. A part
/// may also begin at a linear layer with constant weights, or at norms, activations and sums in
/// front of one. Parts without a linear layer or a closing are left out.
[[nodiscard]] std::unordered_set<script::Value> find_channels_last(const script::Graph& graph,
                                                                   const SeenTensors& seen);

}  // namespace torchalgo
