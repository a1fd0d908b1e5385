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

/// Returns, for each sample, the bytes of src, weights and dst that the engine copies into the
/// layouts of its kernel. Returns nullopt for a sample if the workspaces do not tell.
///
/// An engine that converts layouts needs workspace for the copies. So the workspaces of the eight
/// choices of layouts differ by sums of whole tensors, in the element width of the copy and with
/// channels padded to a multiple. A sample is explained if its workspace is such a sum plus at most
/// 512 bytes. If a remainder could hide a tensor, all samples are unknown. Tensors of 512 bytes or
/// less count as not copied.
[[nodiscard]] std::vector<std::optional<std::int64_t>> hidden_bytes(
    const ConvProblem& conv, std::span<const WorkspaceSample> samples);

}  // namespace torchalgo::cudnn
