// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "ops/choice.h"

namespace torchalgo {

/// Whether a layer that cannot run its planned primitive raises Error instead of falling back.
/// Process-wide, off at the start. Returns the old value.
bool set_strict(bool strict);
[[nodiscard]] bool is_strict();

/// How often a layer ran something else than planned, and why the last time.
struct Fallback {
  std::int64_t count = 0;
  std::string reason;
  bool operator==(const Fallback&) const = default;
};

/// Fallbacks by layer since the start or the last reset_fallbacks(); of a convolution that no plan
/// names, by the spelling of its problem. Another input size that the planned primitive serves is
/// none.
[[nodiscard]] std::map<std::string, Fallback> fallbacks();
void reset_fallbacks();
/// @return  whether it is the first one of `layer` for this reason.
bool count_fallback(const std::string& layer, const std::string& reason);

/// A choice for each direction of a primitive, which is not always that of the module: what
/// computes the output of a transposed convolution is a backward_data primitive.
struct DirectionChoices {
  Choice forward, backward_data, backward_filter;
  [[nodiscard]] const Choice& of(Direction direction) const;
  [[nodiscard]] bool is_empty() const;
  bool operator==(const DirectionChoices&) const = default;
};

/// What happens when a primitive that is asked for breaks a flag of torch (determinism, float32
/// precision): an Error, the next step of the fallback chain, or the primitive runs all the same.
enum class ConflictPolicy : std::uint8_t { kError, kFallback, kHonour };

/// By problem, as a plan lists them; a problem without its epilogue is looked up if the whole one
/// is not found.
using PlannedChoices = std::map<std::string, Choice, std::less<>>;

/// What convolutions obey beside their arguments; process-wide, as torch's own flags are.
struct ConvSettings {
  DirectionChoices context;  // torchalgo.algorithms(...)
  DirectionChoices flags;    // torchalgo.backends.cudnn...
  PlannedChoices planned;    // of a plan by problem
  ConflictPolicy conflict = ConflictPolicy::kError;
  std::uint64_t generation = 1;  // grows with every change: what was decided before is stale

  /// Nobody asks for anything.
  [[nodiscard]] bool is_free() const;
};

/// The settings now; valid until the next call on this thread. Costs a read of one atomic number.
[[nodiscard]] const ConvSettings& conv_settings();

/// Each replaces one setting and returns the old one.
DirectionChoices set_context_choices(DirectionChoices choices);
DirectionChoices set_flag_choices(DirectionChoices choices);
PlannedChoices set_planned_choices(PlannedChoices choices);
ConflictPolicy set_conflict_policy(ConflictPolicy policy);

}  // namespace torchalgo
