// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Bias, residual and activation as kernels apply them. Only sources of this folder may include it:
// everything is in an anonymous namespace, because each build needs its own copy
// (isa.h).

#include <cstdint>

#include "cpu_algo/kernels/activation_functions.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels {
namespace {

constexpr int kBlock = 16;                      // channels of an nChw16c block
constexpr int kBlockVectors = kBlock / kLanes;  // vectors that hold one block

/// Returns true if a kernel applies an activation to its sums in registers. The code is unrolled
/// once for each such activation and tile. So a longer activation is applied to the stored results,
/// which lie in L1.
constexpr bool fits_registers(const Activation& activation) {
  return is_clamp(activation) || activation.kind == Activation::kHardswish;
}

// `activation` is passed by value, since dst might overlap a reference's numbers. The compiler
// would load these again for each vector.
template <Activation::Kind kind, class From, class To>
inline void activate_range(const From* src, To* dst, std::int64_t count, Activation activation) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    activate<kind>(Vec::loadu(src + i), activation).store(dst + i);
  if (i == count) return;
  const int rest = static_cast<int>(count - i);
  activate<kind>(Vec::loadu(src + i, rest), activation).store(dst + i, rest);
}

/// Applies the activation in place to `vectors` vectors, each `step` floats behind the one before.
template <Activation::Kind kind>
inline void activate_vectors(float* data, std::int64_t step, int vectors, Activation activation) {
  for (int i = 0; i < vectors; ++i) {
    float* const at = data + i * step;
    activate<kind>(Vec::loadu(at), activation).store(at);
  }
}

/// Calls function.operator()<kind>().
template <class Function>
inline void with_activation(Activation::Kind kind, const Function& function) {
  switch (kind) {
    case Activation::kNone:
      return function.template operator()<Activation::kNone>();
#define TORCHALGO_CASE(enumerator, ...) \
  case Activation::k##enumerator:       \
    return function.template operator()<Activation::k##enumerator>();
      TORCHALGO_ACTIVATIONS(TORCHALGO_CASE)
#undef TORCHALGO_CASE
  }
}

/// Sets the lanes from `channels` on to zero in `pixels` blocks, each `step` floats behind the one
/// before.
template <class Element>
inline void clear_lanes(Element* block, std::int64_t step, std::int64_t pixels,
                        std::int64_t channels) {
  for (std::int64_t i = 0; i < pixels; ++i, block += step) {
    for (std::int64_t lane = channels; lane < kBlock; ++lane) block[lane] = 0;
  }
}

/// Computes dst[i] = activation(src[i]). src may be dst. Otherwise they must not overlap.
template <class From, class To>
inline void activate(const From* src, To* dst, std::int64_t count, const Activation& activation) {
  with_activation(activation.kind, [&]<Activation::Kind kind>() {
    activate_range<kind>(src, dst, count, activation);
  });
}

}  // namespace
}  // namespace torchalgo::kernels
