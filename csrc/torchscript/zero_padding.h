// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// The zeros before and after the rows and the columns of an image: {of rows, of columns}.
struct ZeroPadding {
  std::vector<std::int64_t> before, after;
  bool operator==(const ZeroPadding&) const = default;
};

/// Returns the zeros that the node adds to its first input, before and after the last two
/// dimensions. Returns nullopt if it does anything else, or if their numbers are not constants.
[[nodiscard]] std::optional<ZeroPadding> zero_padding(script::Node node);

}  // namespace torchalgo
