// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/device.h"
#include "ir/plain_kernel.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

/// The constants of a layer as a kernel reads them.
struct PackedLayer {
  std::vector<float> weights, bias;
};

/// Everything that a program needs to run one step of a schedule without torch.
struct PackedStep {
  std::string_view file;  // AlgorithmFile::name
  bool is_family = false;
  std::int64_t workspace_bytes = 0;
  std::vector<PackedLayer> layers;  // as RunArgs::weights, empty if it has none
};

/// Packs the constants of a step for the instruction set and the number of threads of `device`.
/// @param constants  an entry for each of layers_of(problem), or none if the step has none.
/// @throws Error  if the primitive is not one of our algorithms without torch, or does not run the
/// problem on `device`.
[[nodiscard]] PackedStep pack_step(const Problem& problem, const Primitive& primitive,
                                   const Device& device,
                                   std::span<const cpu::LayerPointers> constants);

}  // namespace torchalgo
