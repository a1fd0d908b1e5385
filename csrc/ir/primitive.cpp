// SPDX-License-Identifier: BSD-3-Clause
#include "ir/primitive.h"

#include <fmt/format.h>

#include <algorithm>

namespace torchalgo {

std::string to_string(const Primitive& primitive) {
  return fmt::format("{} {}->{}", primitive.name, to_string(primitive.src),
                     to_string(primitive.dst));
}

Layout input_layout(const Problem& problem, const Primitive& primitive, std::size_t index) {
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

}  // namespace

Layout weights_layout(const Primitive& primitive) {
  return without_krsc(primitive.name) == primitive.name ? Layout::kNchw : Layout::kNhwc;
}

std::string with_krsc(const std::string& name) {
  std::string result = name;
  return result.insert(end_of_variants(name), kKrscVariant);
}

std::string without_krsc(const std::string& name) {
  const std::size_t end = end_of_variants(name);
  const std::size_t size = kKrscVariant.size();
  for (std::size_t at = name.find(kKrscVariant); at < end; at = name.find(kKrscVariant, at + 1)) {
    if (at + size == end || name[at + size] == '.') return std::string(name).erase(at, size);
  }
  return name;
}

bool matches_name(std::string_view name, std::string_view pattern) {
  if (name == pattern) return true;
  if (!name.starts_with(pattern)) return false;
  const char next = name[pattern.size()];
  return next == '.' || next == '{' || next == '@';
}

}  // namespace torchalgo
