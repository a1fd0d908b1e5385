// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu_algo/kernels/instances.h"
#include "ir/candidates.h"
#include "ir/device.h"
#include "ir/plain_kernel.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

/// Everything that a program needs to run one step of a schedule without torch.
struct PackedStep {
  std::string_view file;  // AlgorithmFile::name
  bool is_family = false;
  std::string primitive;  // name of what `device` has: the wanted one, or a variant of it
  std::int64_t workspace_bytes = 0;
};

/// The constants of a program's steps, as placed_constants() places them.
struct ConstantsFile {
  bool is_packed = true;  // else they are those of the model, which a program packs at its start
  std::string content;
  std::size_t packed_bytes = 0;                                  // of what the kernels read
  std::array<std::uint64_t, kernels::kFamilies> instances = {};  // kernels/instances.h
};

/// Binds a step for the instruction set and the number of threads of `device`, and adds its
/// constants to `file`. If the set lacks this variant of the algorithm, another one in the same
/// layouts takes its place.
/// @param constants  an entry for each of layers_of(problem), or none if the step has none.
/// @throws Error  if the primitive is not one of our algorithms without torch, or does not run the
/// problem on `device`.
[[nodiscard]] PackedStep pack_step(const Problem& problem, const Primitive& primitive,
                                   const Device& device,
                                   std::span<const cpu::LayerPointers> constants,
                                   ConstantsFile& file);

/// Returns the bytes that the constants of each candidate add to ConstantsFile::packed_bytes,
/// rounded up to 64; 0 for a primitive that is not one of our algorithms without torch.
[[nodiscard]] std::vector<std::vector<std::int64_t>> constant_bytes(const Candidates& candidates,
                                                                    const Device& device);

}  // namespace torchalgo
