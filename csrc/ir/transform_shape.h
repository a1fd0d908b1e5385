// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include "ir/graph.h"

namespace torchalgo {

/// Returns the problem of changing a value's layout; the caller sets `from` and `to`. Returns
/// nullopt if the value cannot change its layout.
[[nodiscard]] std::optional<TransformProblem> transform_shape(const Value& value);

/// Returns the reason why no algorithm can run `problem` as a change of layout. Returns an empty
/// text if an algorithm may be able to.
[[nodiscard]] std::string refuse_transform(const Problem& problem);

/// Returns the bytes of a value in a layout; 0 if its sizes or its type are unknown.
[[nodiscard]] std::int64_t bytes_of(const Value& value, Layout layout);

}  // namespace torchalgo
