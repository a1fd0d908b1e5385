// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace torchalgo::kernels {

// All activations: the enumerator without its k, and the name in problems.
#define TORCHALGO_ACTIVATIONS(X) \
  X(None, "")                    \
  X(Relu, "relu")                \
  X(Relu6, "relu6")              \
  X(Hardswish, "hardswish")      \
  X(Silu, "silu")                \
  X(Sigmoid, "sigmoid")          \
  X(Hardsigmoid, "hardsigmoid")  \
  X(Gelu, "gelu")                \
  X(GeluTanh, "gelu_tanh")

/// The function that is applied to each result before it is stored. Each equals torch's function of
/// this name.
enum class Activation : std::uint8_t {
#define TORCHALGO_ENUMERATOR(enumerator, name) k##enumerator,
  TORCHALGO_ACTIVATIONS(TORCHALGO_ENUMERATOR)
#undef TORCHALGO_ENUMERATOR
};

/// Returns the activation of a name, or nullopt if no kernel computes it.
[[nodiscard]] constexpr std::optional<Activation> find_activation(std::string_view wanted) {
#define TORCHALGO_IF_NAMED(enumerator, name) \
  if (wanted == name) return Activation::k##enumerator;
  TORCHALGO_ACTIVATIONS(TORCHALGO_IF_NAMED)
#undef TORCHALGO_IF_NAMED
  return std::nullopt;
}

/// Returns true if the activation maps 0 to 0, so that pad lanes stay zero without further work.
[[nodiscard]] constexpr bool keeps_zero(Activation activation) {
  return activation != Activation::kSigmoid && activation != Activation::kHardsigmoid;
}

/// Returns true if the activation clamps the value to [low, high], which takes almost no time.
[[nodiscard]] constexpr bool is_clamp(Activation activation) {
  return activation <= Activation::kRelu6;
}

}  // namespace torchalgo::kernels
