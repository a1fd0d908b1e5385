// SPDX-License-Identifier: BSD-3-Clause
#include "write/problem_code.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/error.h"

namespace torchalgo {
namespace {

std::string value_code(double value) {
  TORCHALGO_ASSERT(std::isfinite(value));
  return fmt::format("{}", value);
}

std::string value_code(const PostOp& op) {
  return fmt::format("PostOp(PostOp::Kind({}), {{{}, {}}})", static_cast<int>(op.kind),
                     value_code(op.numbers[0]), value_code(op.numbers[1]));
}

template <class Value>
std::string value_code(const std::vector<Value>& values) {
  std::vector<std::string> codes;
  for (const Value& value : values) {
    if constexpr (std::is_same_v<Value, PostOp>)
      codes.push_back(value_code(value));
    else
      codes.push_back(fmt::format("{}", value));
  }
  return fmt::format("{{{}}}", fmt::join(codes, ", "));
}

// Adds a statement for a field that has not its usual value.
template <class Value>
void add_field(std::string_view& names, const Value& value, const Value& usual, std::string& code) {
  const std::string_view name = names.substr(0, names.find(','));
  names.remove_prefix(std::min(names.size(), name.size() + 2));
  if (value == usual) return;
  code += fmt::format(" problem.{} = ", name);
  if constexpr (std::is_enum_v<Value>)
    code += fmt::format("decltype(problem.{})({})", name, static_cast<int>(value));
  else if constexpr (std::is_integral_v<Value>)
    code += fmt::format("{}", value);
  else
    code += value_code(value);
  code += ';';
}

template <class Tuple, std::size_t... i>
std::string fields_code(std::string_view type, std::string_view names, const Tuple& values,
                        const Tuple& usual, std::index_sequence<i...> /*all*/) {
  std::string code = fmt::format("{} problem;", type);
  (add_field(names, std::get<i>(values), std::get<i>(usual), code), ...);
  return code;
}

// The names must be those of all fields: otherwise the structured binding does not compile.
#define TORCHALGO_FIELDS(Type, ...)                                       \
  std::string code_of(const Type& problem) {                              \
    const auto fields = [](const Type& of) {                              \
      const auto& [__VA_ARGS__] = of;                                     \
      return std::tie(__VA_ARGS__);                                       \
    };                                                                    \
    const Type usual;                                                     \
    const auto values = fields(problem);                                  \
    constexpr auto kCount = std::tuple_size_v<decltype(fields(problem))>; \
    return fields_code(#Type, #__VA_ARGS__, values, fields(usual),        \
                       std::make_index_sequence<kCount>());               \
  }

TORCHALGO_FIELDS(ConvProblem, direction, dtype, n, c, d, h, w, k, t, r, s, stride_d, stride_h,
                 stride_w, pad_d, pad_h, pad_w, extra_h, extra_w, dilation_d, dilation_h,
                 dilation_w, groups, is_3d, epilogue)
TORCHALGO_FIELDS(PoolProblem, kind, dtype, n, c, h, w, r, s, stride_h, stride_w, pad_h, pad_w,
                 dilation_h, dilation_w, ceil_mode, count_include_pad, p, q)
TORCHALGO_FIELDS(EltwiseProblem, kind, dtype, n, c, h, w, channelwise, epilogue)
TORCHALGO_FIELDS(ScaleShiftProblem, dtype, n, c, h, w, epilogue)
TORCHALGO_FIELDS(LayerNormProblem, kind, dtype, n, c, h, w, epsilon)
TORCHALGO_FIELDS(GroupNormProblem, dtype, n, c, h, w, groups, epsilon, epilogue)
TORCHALGO_FIELDS(ConcatProblem, dtype, n, h, w, c, groups)
TORCHALGO_FIELDS(SliceProblem, dtype, n, c, h, w, begin, k)
TORCHALGO_FIELDS(ShuffleProblem, dtype, n, c, h, w, groups)
TORCHALGO_FIELDS(PixelShuffleProblem, dtype, n, c, h, w, factor)
TORCHALGO_FIELDS(ResizeProblem, kind, dtype, n, c, h, w, p, q, scale_h, scale_w, align_corners)
TORCHALGO_FIELDS(LinearProblem, dtype, n, c, k, epilogue)
TORCHALGO_FIELDS(TransformProblem, dtype, n, c, d, h, w, is_3d, from, to)
#undef TORCHALGO_FIELDS

std::string code_of(const ConvChainProblem& chain) {
  std::string code = "ConvChainProblem problem;";
  for (const Problem& layer : chain.layers)
    code += fmt::format(" {{ auto& layers = problem.layers; {} layers.emplace_back(problem); }}",
                        problem_code(layer));
  return code;
}

}  // namespace

std::string problem_code(const Problem& problem) {
  return std::visit(
      [](const auto& one) -> std::string {
        if constexpr (requires { code_of(one); }) return code_of(one);
        TORCHALGO_ASSERT(false);
        return {};
      },
      problem);
}

}  // namespace torchalgo
