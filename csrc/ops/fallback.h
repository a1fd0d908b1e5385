// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/algorithm.h"
#include "provider/kernel.h"

namespace torchalgo {

enum class Step : std::uint8_t {
  kPlanned,       // the planned or chosen primitive
  kSameLayouts,   // another one with the same layouts and epilogue
  kOtherLayouts,  // the chosen primitive, with layout changes around it
  kDefaultKnobs,  // the same engine with its default knobs
  kHeuristic,     // what the heuristics of a library propose, or another variant of the algorithm
  kAten           // ATen, with layout changes and the rest of the epilogue around it
};

/// Returns "exact", "same_layouts", "other_layouts", "default_knobs", "heuristic" or "aten".
[[nodiscard]] std::string_view to_string(Step step);

/// The kernel that runs for a planned primitive or a choice: the primitive itself or a fallback.
struct Resolution {
  const Algorithm* algorithm = nullptr;  // null if ATen's copy changes the layout
  std::optional<Kernel> kernel;  // of the problem without the ops of `rest`; nullopt likewise
  Epilogue rest;                 // ATen applies these ops to the kernel's result
  Step step = Step::kPlanned;
  std::string reason;  // why it is not the planned primitive, or empty

  /// Returns the name of the primitive that runs.
  [[nodiscard]] const std::string& name() const;
};

/// Prepares a primitive that `algorithm` offers for `problem`.
[[nodiscard]] Resolution prepare_step(Step step, const Algorithm& algorithm, const Problem& problem,
                                      const Primitive& primitive, const Device& device,
                                      std::string reason = {}, Epilogue rest = {});

/// Returns the primitive that the heuristics of a library put first for exactly this problem in
/// these layouts. Only the algorithms with `offer_one` have heuristics: those of cuDNN. All
/// fallbacks on a GPU ask here, because the first engine in cuDNN's list is its slowest one. On an
/// H100, it takes 273 times as long as the best one (geometric mean of the 44 convolutions of a
/// ResNet-50 in f16 with batch 8). The proposal takes 1.2 times as long, and the best engine with
/// its default knobs 1.4 times.
///
/// Primitives above CandidateOptions().workspace_limit_bytes are left out. One that is compiled
/// when it first runs is taken only if there is no other.
/// @param weights  the layout of the weights in each call: kNchw for kcrs, kNhwc for krsc. nullopt
///     if they are packed once: then the layout is taken that needs fewer copies inside.
/// @param deterministic  leaves out primitives whose bits vary from run to run.
/// @return  nullopt if no heuristics propose anything, as on every CPU.
[[nodiscard]] std::optional<Primitive> propose(const Problem& problem, const Algorithms& algorithms,
                                               const Device& device, Layout src, Layout dst,
                                               std::optional<Layout> weights, bool deterministic);

/// Returns the kernel for a planned primitive. All planned ops get their kernels from this
/// function. The first of these that can run `problem` on `device` is taken:
/// 1. the planned primitive, if its algorithm offers exactly this one (kPlanned);
/// 2. what propose() returns for the planned layouts and deterministic primitives (kHeuristic);
/// 3. a primitive with the same layouts and epilogue, where the planned primitive's own algorithm
///    comes before the others (kSameLayouts). Algorithms that have heuristics are not asked again;
/// 4. the same as 2 for a shorter epilogue, whose rest is left to ATen (kHeuristic);
/// 5. ATen in nchw (kAten).
/// @throws Error  if no algorithm of `algorithms` runs the problem.
[[nodiscard]] Resolution resolve(const Primitive& planned, const Problem& problem,
                                 const Algorithms& algorithms, const Device& device);

}  // namespace torchalgo
