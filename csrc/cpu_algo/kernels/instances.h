// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Instances of the templates that make most of the code. Kernels choose them at run time, by sizes.
// They note which ones they call, so that an emitted program has only those that its steps call.

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A template. The index of an instance is below 64.
enum Family : int {
  kTiles,          // tile_index()
  kHalfTiles,      // those whose last block has half of its columns
  kStrassenUnits,  // tile_index()
  kWinograd,       // of kWinogradTiles
  kRowDots,        // inputs - 1 of run_linear
  kPanelDots,      // the same of run_linear_panels
  kBf16PanelDots,
  kF16PanelDots,
  kDepthwise,  // two for each filter of for_each_filter()
  kFamilies,
};

/// Returns the index of the instance for a tile of at most 16 rows and 4 blocks.
constexpr int tile_index(int rows, int blocks) { return (blocks - 1) * 16 + rows - 1; }

// Bit i of an entry stands for the instance of index i: those that kernels have called. The builds
// for bf16, which programs do not have, define none.
TORCHALGO_DECLARE_BF16_KERNEL(extern std::atomic<std::uint64_t> noted_instances[kFamilies])

// The isa.h of an emitted program defines TORCHALGO_INSTANCES: such bits for each family.
#if defined(TORCHALGO_INSTANCES)
inline constexpr std::uint64_t kInstances[kFamilies] = {TORCHALGO_INSTANCES};
constexpr bool has_instances(Family family) { return kInstances[family] != 0; }
constexpr bool has_instance(Family family, int index) {
  return (kInstances[family] >> index & 1) != 0;
}
#else
constexpr bool has_instances(Family /*family*/) { return true; }
constexpr bool has_instance(Family /*family*/, int /*index*/) { return true; }
#endif

#if defined(TORCHALGO_ISA)
namespace {

inline void note_instance([[maybe_unused]] Family family, [[maybe_unused]] int index) {
#if !defined(TORCHALGO_INSTANCES)
  std::atomic<std::uint64_t>& noted = TORCHALGO_ISA::noted_instances[family];
  const std::uint64_t bit = std::uint64_t{1} << index;
  // Reads first: all threads write this memory, but seldom.
  if ((noted.load(std::memory_order_relaxed) & bit) == 0)
    noted.fetch_or(bit, std::memory_order_relaxed);
#endif
}

/// Calls function(), the code of an instance, if the program has it.
template <Family family, int index, class Function>
void run_instance(const Function& function) {
  note_instance(family, index);
  if constexpr (has_instance(family, index)) {
    function();
  } else {
    std::abort();  // emission has not noted it
  }
}

}  // namespace
#endif

}  // namespace torchalgo::kernels
