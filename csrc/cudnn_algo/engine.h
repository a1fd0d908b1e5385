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
  kConvBackwardFilter
};

struct PatternInfo {
  Pattern pattern;
  std::string_view algorithm;  // "cudnn9.conv_bias_relu"
  Direction direction;
  bool bias, add, relu;
};

/// All patterns in the order of the enumerators.
inline constexpr std::array<PatternInfo, 7> kPatterns = {{
    {Pattern::kConv, "cudnn9.conv", Direction::kForward, false, false, false},
    {Pattern::kConvBias, "cudnn9.conv_bias", Direction::kForward, true, false, false},
    {Pattern::kConvBiasRelu, "cudnn9.conv_bias_relu", Direction::kForward, true, false, true},
    {Pattern::kConvBiasAdd, "cudnn9.conv_bias_add", Direction::kForward, true, true, false},
    {Pattern::kConvBiasAddRelu, "cudnn9.conv_bias_add_relu", Direction::kForward, true, true, true},
    {Pattern::kConvBackwardData, "cudnn9.conv_bwd_data", Direction::kBackwardData, false, false,
     false},
    {Pattern::kConvBackwardFilter, "cudnn9.conv_bwd_filter", Direction::kBackwardFilter, false,
     false, false},
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
