// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "provider/algorithm.h"

namespace torchalgo {

enum class Step : std::uint8_t {
  kPlanned,       // the planned or chosen primitive
  kSameLayouts,   // another one with the same layouts and epilogue
  kOtherLayouts,  // the chosen primitive, with layout changes around it
  kDefaultKnobs,  // the same engine with its default knobs
  kHeuristic,     // the one that its library or algorithm puts first
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

/// Returns the kernel for a planned primitive. All planned ops get their kernels from this
/// function. The first of these that can run `problem` on `device` is taken:
/// 1. the planned primitive, if its algorithm offers exactly this one;
/// 2. the first primitive of `algorithms` with the same layouts and epilogue, where the planned
///    primitive's own algorithm comes before the others;
/// 3. ATen.
/// @throws Error  if no algorithm of `algorithms` runs the problem.
[[nodiscard]] Resolution resolve(const Primitive& planned, const Problem& problem,
                                 const Algorithms& algorithms, const Device& device);

}  // namespace torchalgo
