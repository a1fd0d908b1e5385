// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "cudnn_algo/legacy.h"
#include "ir/primitive.h"

namespace torchalgo::cudnn {
namespace {

constexpr std::array<LegacyAlgorithm, 8> kForward = {{{0, "IMPLICIT_GEMM"},
                                                      {1, "IMPLICIT_PRECOMP_GEMM"},
                                                      {2, "GEMM"},
                                                      {3, "DIRECT"},
                                                      {4, "FFT"},
                                                      {5, "FFT_TILING"},
                                                      {6, "WINOGRAD"},
                                                      {7, "WINOGRAD_NONFUSED"}}};
constexpr std::array<LegacyAlgorithm, 6> kBackwardData = {{{0, "ALGO_0", false},
                                                           {1, "ALGO_1"},
                                                           {2, "FFT"},
                                                           {3, "FFT_TILING"},
                                                           {4, "WINOGRAD"},
                                                           {5, "WINOGRAD_NONFUSED"}}};
constexpr std::array<LegacyAlgorithm, 7> kBackwardFilter = {{{0, "ALGO_0", false},
                                                             {1, "ALGO_1"},
                                                             {2, "FFT"},
                                                             {3, "ALGO_3", false},
                                                             {4, "WINOGRAD"},
                                                             {5, "WINOGRAD_NONFUSED"},
                                                             {6, "FFT_TILING"}}};

constexpr std::array<std::pair<MathType, std::string_view>, 3> kMathWords = {
    {{MathType::kTensorOp, "@tensor_op"},
     {MathType::kTensorOpAllowConversion, "@tensor_op_conversion"},
     {MathType::kFma, "@fma"}}};

// Removes `part` from the end of `text`. Returns false if `text` does not end with it.
bool take_suffix(std::string_view& text, std::string_view part) {
  if (!text.ends_with(part)) return false;
  text.remove_suffix(part.size());
  return true;
}

std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_plain =
      error == std::errc() && end == text.data() + text.size() && std::to_string(number) == text;
  return is_plain ? std::optional(number) : std::nullopt;
}

}  // namespace

std::span<const LegacyAlgorithm> legacy_algorithms(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return kForward;
    case Direction::kBackwardData:
      return kBackwardData;
    case Direction::kBackwardFilter:
      break;
  }
  return kBackwardFilter;
}

std::string_view legacy_algorithm_name(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "cudnn_legacy.fwd";
    case Direction::kBackwardData:
      return "cudnn_legacy.bwd_data";
    case Direction::kBackwardFilter:
      break;
  }
  return "cudnn_legacy.bwd_filter";
}

std::string to_string(const LegacySpec& spec) {
  return fmt::format("{}.{}{}{}", legacy_algorithm_name(spec.direction), spec.number,
                     spec.weights == Layout::kNhwc ? kKrscVariant : "", math_word(spec.math));
}

std::string_view math_word(MathType math) {
  for (const auto& [known, word] : kMathWords) {
    if (known == math) return word;
  }
  return "";
}

std::optional<LegacySpec> parse_legacy_spec(std::string_view name) {
  LegacySpec spec;
  if (!take_suffix(name, "@default")) {
    for (const auto& [math, word] : kMathWords) {
      if (take_suffix(name, word)) {
        spec.math = math;
        break;
      }
    }
  }
  if (take_suffix(name, kKrscVariant)) spec.weights = Layout::kNhwc;
  for (const Direction direction :
       {Direction::kForward, Direction::kBackwardData, Direction::kBackwardFilter}) {
    const std::string prefix = std::string(legacy_algorithm_name(direction)) + ".";
    if (!name.starts_with(prefix)) continue;
    const auto number = parse_number(name.substr(prefix.size()));
    if (!number || *number < 0 ||
        *number >= static_cast<int>(legacy_algorithms(direction).size())) {
      return std::nullopt;
    }
    spec.direction = direction;
    spec.number = *number;
    return spec;
  }
  return std::nullopt;
}

MathType math_type(const LegacySpec& spec, DType dtype) {
  return spec.math == MathType::kDefault && dtype == DType::kF32 ? MathType::kFma : spec.math;
}

std::optional<std::string> math_refusal(MathType math, DType dtype) {
  if (math == MathType::kDefault || math == MathType::kFma) return std::nullopt;
  if (dtype == DType::kF64) return "there is no tensor-core math for f64";
  if (dtype == DType::kF32) {
    return "tensor-core math computes in TF32 or less, the problem is f32: say tf32 to allow it";
  }
  if (math == MathType::kTensorOp) return std::nullopt;
  if (dtype == DType::kTf32) return "may round its inputs to 16 bits, the problem is tf32";
  return fmt::format("there is nothing to convert in {}: it is @tensor_op", to_string(dtype));
}

}  // namespace torchalgo::cudnn
