// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace torchalgo {

/// A step that follows an operation and changes each element of its result. All except kBias and
/// kAdd are activations. Each equals the torch function of the same name.
struct PostOp {
  enum class Kind : std::uint8_t {
    kBias,
    kAdd,
    kRelu,
    kRelu6,
    kHardswish,
    kSilu,
    kSigmoid,
    kHardsigmoid,
    kGelu,
    kGeluTanh,  // gelu(x, approximate="tanh")
    kMish,
    kTanh,
    kElu,
    kLeakyRelu,
    kClamp
  };
  using enum Kind;

  Kind kind = kBias;
  /// Holds alpha of kElu, the slope of kLeakyRelu, and the bounds of kClamp, between which 0 lies.
  /// Other numbers are 0.
  std::array<double, 2> numbers = {};

  // A kind without numbers is a post-op.
  constexpr PostOp(Kind kind = kBias, std::array<double, 2> numbers = {})
      : kind(kind), numbers(numbers) {}
  bool operator==(const PostOp&) const = default;
};
/// Post-ops in the order in which they are computed.
using Epilogue = std::vector<PostOp>;

/// The names of post-ops in the texts of problems, as in "+bias". The numbers of a post-op follow
/// its name, as in "+leaky_relu0.1" and "+clamp-1x1".
inline constexpr auto kPostOps = std::to_array<std::pair<PostOp::Kind, std::string_view>>({
    {PostOp::kBias, "bias"},
    {PostOp::kAdd, "add"},
    {PostOp::kRelu, "relu"},
    {PostOp::kRelu6, "relu6"},
    {PostOp::kHardswish, "hardswish"},
    {PostOp::kSilu, "silu"},
    {PostOp::kSigmoid, "sigmoid"},
    {PostOp::kHardsigmoid, "hardsigmoid"},
    {PostOp::kGelu, "gelu"},
    {PostOp::kGeluTanh, "gelu_tanh"},
    {PostOp::kMish, "mish"},
    {PostOp::kTanh, "tanh"},
    {PostOp::kElu, "elu"},
    {PostOp::kLeakyRelu, "leaky_relu"},
    {PostOp::kClamp, "clamp"},
});

/// The largest absolute value of a number of a post-op. Larger ones would need a "+" in the text.
inline constexpr double kLargestNumber = 1e6;

/// Returns how many numbers a post-op of this kind has.
[[nodiscard]] constexpr int number_count(PostOp::Kind kind) {
  if (kind == PostOp::kClamp) return 2;
  return kind == PostOp::kElu || kind == PostOp::kLeakyRelu ? 1 : 0;
}

[[nodiscard]] constexpr bool is_activation(const PostOp& op) {
  return op.kind != PostOp::kBias && op.kind != PostOp::kAdd;
}

}  // namespace torchalgo
