// SPDX-License-Identifier: BSD-3-Clause
#include "ir/primitive.h"

#include <fmt/format.h>

#include <algorithm>

namespace torchalgo {

std::string to_string(const Primitive& primitive) {
  return fmt::format("{} {}->{}", primitive.name, to_string(primitive.src),
                     to_string(primitive.dst));
}

namespace {

// Returns true if data input `index` holds numbers per channel, which stay in the problem's type.
bool is_channelwise_input(const BatchNormProblem& norm, std::size_t index) {
  switch (norm.step) {
    case BatchNormStep::kMoments:
      return false;
    case BatchNormStep::kNormalize:
      return index >= 1;  // the moments
    case BatchNormStep::kGradientSums:
    case BatchNormStep::kGradient:
      return index >= 2;  // the moments, and the gradient sums
  }
  return false;
}

}  // namespace

Layout input_layout(const Problem& problem, const Primitive& primitive, std::size_t index) {
  const auto* norm = std::get_if<BatchNormProblem>(&problem);
  if (norm != nullptr && is_channelwise_input(*norm, index)) return untyped(primitive.src);
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr || conv->direction == Direction::kForward) return primitive.src;
  if (conv->direction == Direction::kBackwardData) return primitive.dst;
  return index == 0 ? primitive.src : primitive.dst;
}

Layout result_layout(const Problem& problem, const Primitive& primitive) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr || conv->direction == Direction::kForward) return primitive.dst;
  return conv->direction == Direction::kBackwardData ? primitive.src : weights_layout(primitive);
}

namespace {

// Returns the end of the variants in a name. Knobs or a math type follow.
std::size_t end_of_variants(std::string_view name) {
  return std::min(name.find_first_of("{@"), name.size());
}

// Returns the position of a variant, which begins with a point, or npos if `name` lacks it.
std::size_t find_variant(std::string_view name, std::string_view variant) {
  const std::size_t end = end_of_variants(name);
  for (std::size_t at = name.find(variant); at < end; at = name.find(variant, at + 1)) {
    const std::size_t after = at + variant.size();
    if (after == end || name[after] == '.') return at;
  }
  return name.npos;
}

}  // namespace

Layout weights_layout(const Primitive& primitive) {
  return without_krsc(primitive.name) == primitive.name ? Layout::kNchw : Layout::kNhwc;
}

std::string with_krsc(const std::string& name) {
  std::string result = name;
  return result.insert(end_of_variants(name), kKrscVariant);
}

std::string without_krsc(const std::string& name) {
  const std::size_t at = find_variant(name, kKrscVariant);
  return at == name.npos ? name : std::string(name).erase(at, kKrscVariant.size());
}

DType stored_type(const Primitive& primitive, DType dtype) {
  if (is_typed(primitive.src) || is_typed(primitive.dst)) return DType::kBf16;
  if (find_variant(primitive.name, ".wbf16") != primitive.name.npos) return DType::kBf16;
  if (find_variant(primitive.name, ".wf16") != primitive.name.npos) return DType::kF16;
  return dtype;
}

bool rounds_coarsely(const Problem& problem, const Primitive& primitive) {
  if (std::holds_alternative<TransformProblem>(problem)) return false;
  return stored_type(primitive, dtype_of(problem)) != dtype_of(problem);
}

bool matches_name(std::string_view name, std::string_view pattern) {
  if (name == pattern) return true;
  if (pattern.ends_with('.')) return name == pattern.substr(0, pattern.size() - 1);
  if (!name.starts_with(pattern)) return false;
  const char next = name[pattern.size()];
  return next == '.' || next == '{' || next == '@';
}

}  // namespace torchalgo
