// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace torchalgo::kernels {

/// What is done to each result before it is stored; torch's functions of these names.
enum class Activation : std::uint8_t {
  kNone,
  kRelu,
  kRelu6,
  kHardswish,
  kSilu,
  kSigmoid,
  kHardsigmoid
};

/// Whether the activation maps 0 to 0, so that pad lanes stay zero without further work.
[[nodiscard]] constexpr bool keeps_zero(Activation activation) {
  return activation != Activation::kSigmoid && activation != Activation::kHardsigmoid;
}

/// Whether the activation is a clamp of the value to [low, high], which costs next to nothing.
[[nodiscard]] constexpr bool is_clamp(Activation activation) {
  return activation <= Activation::kRelu6;
}

}  // namespace torchalgo::kernels
