// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cudnn_algo/graph.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// The exact workspace of one engine with its default knobs for one choice of layouts.
struct WorkspaceSample {
  Layouts layouts;
  std::int64_t workspace_bytes = 0;
};

/// Bytes that the engine copies of src, weights and dst into layouts that its kernel wants, for
/// each sample; nothing: the workspaces do not tell.
///
/// An engine that converts needs the copies' bytes as workspace, so the workspaces of the eight
/// choices of layouts differ by sums of whole tensors (in the width of the copy, with channels
/// padded to a multiple). A sample is explained if its workspace is such a sum plus at most 512
/// bytes; a rest that could hide a tensor leaves all unknown. Tensors of 512 bytes and less count
/// as not copied.
[[nodiscard]] std::vector<std::optional<std::int64_t>> hidden_bytes(
    const ConvProblem& conv, std::span<const WorkspaceSample> samples);

}  // namespace torchalgo::cudnn
