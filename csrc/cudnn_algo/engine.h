// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cudnn_algo/knobs.h"
#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// The operations of an operation graph. cuDNN numbers its engines separately for each pattern, so
/// the pattern is part of the name.
enum class Pattern : std::uint8_t {
  kConv,
  kConvBias,
  kConvBiasRelu,
  kConvBiasAdd,
  kConvBiasAddRelu,
  kConvBackwardData,
  kConvBackwardFilter,
  // cuDNN has no kernels for the following ones. It compiles them when they first run.
  kConvRelu,
  kConvBiasSilu,
  kConvBiasGelu
};

struct PatternInfo {
  Pattern pattern;
  std::string_view algorithm;  // "cudnn9.conv_bias_relu"
  Direction direction;
  bool bias = false, add = false;
  std::optional<PostOp::Kind> activation = std::nullopt;
};

/// All patterns in the order of the enumerators.
inline constexpr std::array<PatternInfo, 10> kPatterns = {{
    {Pattern::kConv, "cudnn9.conv", Direction::kForward},
    {Pattern::kConvBias, "cudnn9.conv_bias", Direction::kForward, true},
    {Pattern::kConvBiasRelu, "cudnn9.conv_bias_relu", Direction::kForward, true, false,
     PostOp::kRelu},
    {Pattern::kConvBiasAdd, "cudnn9.conv_bias_add", Direction::kForward, true, true},
    {Pattern::kConvBiasAddRelu, "cudnn9.conv_bias_add_relu", Direction::kForward, true, true,
     PostOp::kRelu},
    {Pattern::kConvBackwardData, "cudnn9.conv_bwd_data", Direction::kBackwardData},
    {Pattern::kConvBackwardFilter, "cudnn9.conv_bwd_filter", Direction::kBackwardFilter},
    {Pattern::kConvRelu, "cudnn9.conv_relu", Direction::kForward, false, false, PostOp::kRelu},
    {Pattern::kConvBiasSilu, "cudnn9.conv_bias_silu", Direction::kForward, true, false,
     PostOp::kSilu},
    {Pattern::kConvBiasGelu, "cudnn9.conv_bias_gelu", Direction::kForward, true, false,
     PostOp::kGelu},
}};

[[nodiscard]] constexpr const PatternInfo& info(Pattern pattern) {
  return kPatterns[static_cast<std::size_t>(pattern)];
}

/// Returns the pattern that computes exactly this problem, epilogue included, or nullopt if there
/// is none.
[[nodiscard]] std::optional<Pattern> pattern_of(const ConvProblem& conv);

/// One of cuDNN's graph engines with its knobs. It is the part of a primitive that its name
/// describes, without the layouts of src and dst.
struct EngineSpec {
  Pattern pattern = Pattern::kConv;
  std::int64_t engine = 0;         // CUDNN_ATTR_ENGINE_GLOBAL_INDEX
  Layout weights = Layout::kNchw;  // kNchw: kcrs; kNhwc: krsc, variant ".krsc"
  Knobs knobs;                     // sorted by name; empty for the engine's defaults
  auto operator<=>(const EngineSpec&) const = default;
};

/// Returns the primitive's name: "cudnn9.conv_bias_relu.e22.krsc{STAGES=3,TILE_SIZE=4}".
[[nodiscard]] std::string to_string(const EngineSpec& spec);

/// Reads the name of a primitive, as to_string() writes it. Returns nullopt for any other text,
/// also if the knobs are not in order.
[[nodiscard]] std::optional<EngineSpec> parse_engine_spec(std::string_view name);

}  // namespace torchalgo::cudnn
