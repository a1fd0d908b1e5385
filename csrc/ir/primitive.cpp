// SPDX-License-Identifier: BSD-3-Clause
#include "ir/primitive.h"

#include <fmt/format.h>

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

Layout weights_layout(const Primitive& primitive) {
  const std::string_view name(primitive.name);
  const std::string_view plain = name.substr(0, name.find_first_of("{@"));
  return plain.ends_with(".krsc") || plain.find(".krsc.") != plain.npos ? Layout::kNhwc
                                                                        : Layout::kNchw;
}

bool matches_name(std::string_view name, std::string_view pattern) {
  if (name == pattern) return true;
  if (!name.starts_with(pattern)) return false;
  const char next = name[pattern.size()];
  return next == '.' || next == '{' || next == '@';
}

}  // namespace torchalgo
