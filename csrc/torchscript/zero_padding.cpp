// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/zero_padding.h"

#include <algorithm>

#include "torchscript/constants.h"

namespace torchalgo {

std::optional<ZeroPadding> zero_padding(script::Node node) {
  const bool has_mode = node.is("aten::pad");
  if (!has_mode && !node.is("aten::constant_pad_nd")) return std::nullopt;
  if (has_mode) {
    const auto mode = node.argument("mode").constant();
    if (!mode || !mode->isString() || mode->toStringRef() != "constant") return std::nullopt;
  }
  script::Value value = node.argument("value");
  if (!is_none(value) && constant_number(value) != 0.0) return std::nullopt;
  auto sizes = constant_ints(node.argument("pad"));
  if (!sizes || (sizes->size() != 2 && sizes->size() != 4)) return std::nullopt;
  sizes->resize(4, 0);
  if (std::any_of(sizes->begin(), sizes->end(), [](auto size) { return size < 0; })) {
    return std::nullopt;
  }
  const std::vector<std::int64_t>& wwhh = *sizes;  // the last dimension is first
  return ZeroPadding{{wwhh[2], wwhh[0]}, {wwhh[3], wwhh[1]}};
}

}  // namespace torchalgo
