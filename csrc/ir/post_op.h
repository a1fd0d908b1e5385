// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/activations.h"

namespace torchalgo {

/// A step that follows an operation and changes each element of its result. All except kBias and
/// kAdd are activations (ir/activations.h). Each equals the torch function of the same name.
struct PostOp {
  enum class Kind : std::uint8_t {
    kBias,
    kAdd,
#define TORCHALGO_ENUMERATOR(enumerator, ...) k##enumerator,
    TORCHALGO_ACTIVATIONS(TORCHALGO_ENUMERATOR)
#undef TORCHALGO_ENUMERATOR
  };
  using enum Kind;

  Kind kind = kBias;
  /// Holds alpha of kElu, the slope of kLeakyRelu, and the bounds of kClamp, between which 0 lies.
  /// Other numbers are 0.
  std::array<double, 2> numbers = {};

  // A kind without numbers is a post-op.
  constexpr PostOp(Kind of = kBias, std::array<double, 2> with = {}) : kind(of), numbers(with) {}
  bool operator==(const PostOp&) const = default;
};
/// Post-ops in the order in which they are computed.
using Epilogue = std::vector<PostOp>;

/// The names of post-ops in the texts of problems, as in "+bias". The numbers of a post-op follow
/// its name, as in "+leaky_relu0.1" and "+clamp-1x1".
inline constexpr auto kPostOps =
    std::to_array<std::pair<PostOp::Kind, std::string_view>>({{PostOp::kBias, "bias"},
                                                              {PostOp::kAdd, "add"},
#define TORCHALGO_NAME(enumerator, name, ...) {PostOp::k##enumerator, name},
                                                              TORCHALGO_ACTIVATIONS(TORCHALGO_NAME)
#undef TORCHALGO_NAME
    });

/// The largest absolute value of a number of a post-op. Larger ones would need a "+" in the text.
inline constexpr double kLargestNumber = 1e6;

/// Returns how many numbers a post-op of this kind has.
[[nodiscard]] constexpr int number_count(PostOp::Kind kind) {
  switch (kind) {
#define TORCHALGO_CASE(enumerator, name, numbers, ...) \
  case PostOp::k##enumerator:                          \
    return numbers;
    TORCHALGO_ACTIVATIONS(TORCHALGO_CASE)
#undef TORCHALGO_CASE
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  return 0;
}

[[nodiscard]] constexpr bool is_activation(const PostOp& op) {
  return op.kind != PostOp::kBias && op.kind != PostOp::kAdd;
}

}  // namespace torchalgo
