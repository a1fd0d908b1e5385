// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "ir/activations.h"

namespace torchalgo::kernels {

/// The function that is applied to each result before it is stored. Each equals torch's function of
/// this name.
struct Activation {
  enum Kind : std::uint8_t {  // no `using enum`, which GCC 12 cannot read in templates
    kNone,
#define TORCHALGO_ENUMERATOR(enumerator, ...) k##enumerator,
    TORCHALGO_ACTIVATIONS(TORCHALGO_ENUMERATOR)
#undef TORCHALGO_ENUMERATOR
  };

  Kind kind = kNone;
  /// Holds alpha of kElu, the slope of kLeakyRelu, and the bounds of kClamp, between which 0 lies.
  /// Other activations do not read them.
  float numbers[2] = {};

  // A kind without numbers is an activation.
  constexpr Activation(Kind of = kNone, float first = 0, float second = 0)
      : kind(of), numbers{first, second} {}
};

/// Returns true if the activation maps 0 to 0, so that pad lanes stay zero without further work.
[[nodiscard]] constexpr bool keeps_zero(const Activation& activation) {
  switch (activation.kind) {
#define TORCHALGO_CASE(enumerator, name, numbers, keeps_zero) \
  case Activation::k##enumerator:                             \
    return keeps_zero;
    TORCHALGO_ACTIVATIONS(TORCHALGO_CASE)
#undef TORCHALGO_CASE
    case Activation::kNone:
      break;
  }
  return true;
}

/// Returns true if the activation clamps the value to [low, high], which takes almost no time.
[[nodiscard]] constexpr bool is_clamp(const Activation& activation) {
  return activation.kind <= Activation::kClamp;
}

}  // namespace torchalgo::kernels
