// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "pbqp/problem.h"

namespace torchalgo::pbqp {

/// Returns the problem as lines of words: "pbqp 1", then "node <cost>..." per node in order, then
/// "edge <u> <v> <cost>..." with the matrix row by row. "-" is kForbidden. Problems that were
/// solved wrongly are kept in this form under tests/regressions.
[[nodiscard]] std::string to_text(const Problem& problem);

/// Returns the SHA-256 of to_text(problem), by which certificates name the problem.
[[nodiscard]] std::string hash_of(const Problem& problem);

/// Reads the text that to_text() writes. Blank lines and lines that start with '#' are skipped.
/// @throws std::invalid_argument  naming the line, if the text is not a problem; or as
/// check_problem.
[[nodiscard]] Problem parse_problem(std::string_view text);

}  // namespace torchalgo::pbqp
