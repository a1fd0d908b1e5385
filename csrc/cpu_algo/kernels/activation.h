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
  X(Clamp, "clamp")              \
  X(Hardswish, "hardswish")      \
  X(Silu, "silu")                \
  X(Sigmoid, "sigmoid")          \
  X(Hardsigmoid, "hardsigmoid")  \
  X(Gelu, "gelu")                \
  X(GeluTanh, "gelu_tanh")       \
  X(Mish, "mish")                \
  X(Tanh, "tanh")                \
  X(Elu, "elu")                  \
  X(LeakyRelu, "leaky_relu")

/// The function that is applied to each result before it is stored. Each equals torch's function of
/// this name.
struct Activation {
  enum Kind : std::uint8_t {  // no `using enum`, which GCC 12 cannot read in templates
#define TORCHALGO_ENUMERATOR(enumerator, name) k##enumerator,
    TORCHALGO_ACTIVATIONS(TORCHALGO_ENUMERATOR)
#undef TORCHALGO_ENUMERATOR
  };

  Kind kind = kNone;
  /// Holds alpha of kElu, the slope of kLeakyRelu, and the bounds of kClamp, between which 0 lies.
  /// Other activations do not read them.
  float numbers[2] = {};

  // A kind without numbers is an activation.
  constexpr Activation(Kind kind = kNone, float first = 0, float second = 0)
      : kind(kind), numbers{first, second} {}
};

/// Returns the kind of activation of a name, or nullopt if no kernel computes it.
[[nodiscard]] constexpr std::optional<Activation::Kind> find_activation(std::string_view wanted) {
#define TORCHALGO_IF_NAMED(enumerator, name) \
  if (wanted == name) return Activation::k##enumerator;
  TORCHALGO_ACTIVATIONS(TORCHALGO_IF_NAMED)
#undef TORCHALGO_IF_NAMED
  return std::nullopt;
}

/// Returns true if the activation maps 0 to 0, so that pad lanes stay zero without further work.
[[nodiscard]] constexpr bool keeps_zero(const Activation& activation) {
  return activation.kind != Activation::kSigmoid && activation.kind != Activation::kHardsigmoid;
}

/// Returns true if the activation clamps the value to [low, high], which takes almost no time.
[[nodiscard]] constexpr bool is_clamp(const Activation& activation) {
  return activation.kind <= Activation::kClamp;
}

}  // namespace torchalgo::kernels
