// SPDX-License-Identifier: BSD-3-Clause
#include "ir/primitive.h"

#include <fmt/format.h>

namespace torchalgo {

std::string to_string(const Primitive& primitive) {
  return fmt::format("{} {}->{}", primitive.name, to_string(primitive.src),
                     to_string(primitive.dst));
}

bool matches_name(std::string_view name, std::string_view pattern) {
  if (name == pattern) return true;
  if (!name.starts_with(pattern)) return false;
  const char next = name[pattern.size()];
  return next == '.' || next == '{';
}

}  // namespace torchalgo
