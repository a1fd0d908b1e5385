// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "ir/graph.h"

namespace torchalgo {

/// Returns the problem of changing a value's layout, with `from` and `to` empty.
/// Returns nothing if the value cannot change its layout.
[[nodiscard]] std::optional<TransformProblem> transform_shape(const Value& value);

}  // namespace torchalgo
