// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/plain_kernel.h"
#include "ir/problem.h"

// The constants of a network in one piece of memory: weights and bias of each layer of each step in
// turn, each at a multiple of 64 bytes.

namespace torchalgo {

/// The alignment of constants, tensors and workspaces, in bytes.
inline constexpr std::size_t kAlignment = 64;

/// Runs all tasks on the thread of the caller.
inline constexpr cpu::Threads kCaller = {
    [](void*, std::int64_t count, std::int64_t, cpu::Threads::Body call, const void* body) {
      if (count > 0) call(body, 0, count);
    },
    nullptr};

/// Returns the numbers of floats of the model's layers, one entry for each of layers_of(problem).
[[nodiscard]] std::vector<cpu::PackedFloats> model_floats(const Problem& problem);

/// Returns how many floats `kernel.run` reads for each layer, packed ones and the model's own.
[[nodiscard]] std::vector<cpu::PackedFloats> kernel_floats(const cpu::PlainKernel& kernel,
                                                           const Problem& problem);

/// Writes what `kernel.run` reads: packed constants, and copies of the others.
/// @param model  an entry for each of model_floats().
/// @param to  an entry for each of kernel_floats(), null where that is 0.
void write_constants(const cpu::PlainKernel& kernel, const Problem& problem,
                     std::span<const cpu::LayerPointers> model,
                     std::span<const cpu::PackedPointers> to);

/// Returns the places of constants of these sizes in the memory at `begin`, which may be null to
/// count only, and adds their bytes to `offset`.
[[nodiscard]] std::vector<cpu::PackedPointers> placed_constants(
    std::span<const cpu::PackedFloats> floats, char* begin, std::size_t& offset);

/// Returns the same places for who reads.
[[nodiscard]] std::vector<cpu::LayerPointers> for_reading(
    std::span<const cpu::PackedPointers> constants);

}  // namespace torchalgo
