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
  kSameLayouts,   // another one that reads, writes and fuses the same
  kOtherLayouts,  // the chosen primitive, with layout changes around it
  kDefaultKnobs,  // the same engine with its default knobs
  kHeuristic,     // the one that its library or algorithm puts first
  kAten           // ATen, with layout changes and the rest of the epilogue around it
};

/// "exact", "same_layouts", "other_layouts", "default_knobs", "heuristic", "aten".
[[nodiscard]] std::string_view to_string(Step step);

/// What runs in place of a planned primitive or a choice.
struct Resolution {
  const Algorithm* algorithm = nullptr;  // null if ATen's copy changes the layout
  std::optional<Kernel> kernel;          // of the problem without the ops of `rest`; none likewise
  Epilogue rest;                         // ATen applies these ops to the kernel's result
  Step step = Step::kPlanned;
  std::string reason;  // why it is not the planned primitive; empty if it is

  /// Returns the name of the primitive that runs.
  [[nodiscard]] const std::string& name() const;
};

/// Prepares a primitive that `algorithm` offers for `problem`.
[[nodiscard]] Resolution prepare_step(Step step, const Algorithm& algorithm, const Problem& problem,
                                      const Primitive& primitive, const Device& device,
                                      std::string reason = {}, Epilogue rest = {});

/// The one way from a plan to a kernel: the planned primitive if its algorithm offers exactly it
/// for `problem` on `device`; else the first of `algorithms` (its own algorithm before the others)
/// that has the same layouts and epilogue; else ATen.
/// @throws Error  if nothing in `algorithms` runs the problem.
[[nodiscard]] Resolution resolve(const Primitive& planned, const Problem& problem,
                                 const Algorithms& algorithms, const Device& device);

}  // namespace torchalgo
