// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "ops/choice.h"

namespace torchalgo {

/// Sets whether a layer that cannot run its planned primitive raises Error instead of falling back.
/// The setting is process-wide and off at the start. Returns the old value.
bool set_strict(bool strict);
[[nodiscard]] bool is_strict();

/// The number of times that a layer ran another primitive than planned, and the last reason.
struct Fallback {
  std::int64_t count = 0;
  std::string reason;
  bool operator==(const Fallback&) const = default;
};

/// Returns the fallbacks by layer since the start or the last reset_fallbacks(). A convolution
/// outside of a plan counts under the text of its problem. An input of another size is not a
/// fallback if the planned primitive can run it.
[[nodiscard]] std::map<std::string, Fallback> fallbacks();
void reset_fallbacks();
/// Counts a fallback. Returns true if it is the first one of `layer` for this reason.
bool count_fallback(const std::string& layer, const std::string& reason);

/// A choice for each direction of a primitive. It is not always the direction of the module: a
/// backward_data primitive computes the output of a transposed convolution.
struct DirectionChoices {
  Choice forward, backward_data, backward_filter;
  [[nodiscard]] const Choice& of(Direction direction) const;
  [[nodiscard]] bool is_empty() const;
  bool operator==(const DirectionChoices&) const = default;
};

/// The reaction to a chosen primitive that breaks a flag of torch (determinism, float32 precision).
/// It is an Error, the next step of the fallback, or to run the primitive nevertheless.
enum class ConflictPolicy : std::uint8_t { kError, kFallback, kHonour };

/// The choices of a plan by problem. If a problem is not found, it is looked up without its
/// epilogue.
using PlannedChoices = std::map<std::string, Choice, std::less<>>;

/// The settings of convolutions apart from their arguments. They are process-wide, as torch's own
/// flags.
struct ConvSettings {
  DirectionChoices context;  // torchalgo.algorithms(...)
  DirectionChoices flags;    // torchalgo.backends.cudnn...
  PlannedChoices planned;    // of a plan by problem
  ConflictPolicy conflict = ConflictPolicy::kError;
  std::uint64_t generation = 1;  // grows with every change, which makes older decisions stale

  /// Returns true if no setting constrains the choice.
  [[nodiscard]] bool is_free() const;
};

/// Returns the present settings. The reference is valid until the next call on this thread. The
/// call reads one atomic number.
[[nodiscard]] const ConvSettings& conv_settings();

/// Each of these functions replaces one setting and returns the old one.
DirectionChoices set_context_choices(DirectionChoices choices);
DirectionChoices set_flag_choices(DirectionChoices choices);
PlannedChoices set_planned_choices(PlannedChoices choices);
ConflictPolicy set_conflict_policy(ConflictPolicy policy);

}  // namespace torchalgo
