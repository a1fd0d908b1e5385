// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace torchalgo {

/// Tensors [1, c, 4, 4] made by nobody, and concatenations of them.
struct Flow {
  Graph graph;
  std::int64_t n = 1, h = 4;

  int value(std::int64_t channels, int producer = -1) {
    const int index = static_cast<int>(graph.values.size());
    graph.values.push_back(
        {fmt::format("v{:03}", index), {n, channels, h, h}, DType::kF32, producer});
    return index;
  }
  /// The result; its node is graph.nodes.back().
  int concat(const std::vector<int>& parts) {
    ConcatProblem problem;
    problem.n = n, problem.h = h, problem.w = h;
    std::int64_t channels = 0;
    for (const int part : parts) {
      problem.c.push_back(graph.values[part].sizes[1]);
      channels += problem.c.back();
    }
    const int node = static_cast<int>(graph.nodes.size());
    const int result = value(channels, node);
    graph.nodes.push_back(
        {fmt::format("cat{:03}", node), "aten::cat", parts, {result}, problem, ""});
    return result;
  }
};

}  // namespace torchalgo
