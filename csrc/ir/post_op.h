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
enum class PostOp : std::uint8_t {
  kBias,
  kAdd,
  kRelu,
  kRelu6,
  kHardswish,
  kSilu,
  kSigmoid,
  kHardsigmoid,
  kGelu,
  kGeluTanh  // gelu(x, approximate="tanh")
};
/// Post-ops in the order in which they are computed.
using Epilogue = std::vector<PostOp>;

/// The names of post-ops in the texts of problems, as in "+bias".
inline constexpr auto kPostOps = std::to_array<std::pair<PostOp, std::string_view>>({
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
});

[[nodiscard]] constexpr bool is_activation(PostOp op) {
  return op != PostOp::kBias && op != PostOp::kAdd;
}

}  // namespace torchalgo
