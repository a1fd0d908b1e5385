// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "pbqp/solve.h"

namespace torchalgo::pbqp {

/// What a stranger needs to check a solution, beside the problem: lines of words, described in
/// docs/pbqp.md. "pbqp-certificate 2", the SHA-256 of to_text(problem), choice, cost, bound, the
/// proof's lines. scripts/check_certificate.py reads it.
[[nodiscard]] std::string certificate_text(const Problem& problem, const Solution& solution);

/// "optimal", "feasible", "infeasible", "unknown".
[[nodiscard]] const char* to_string(Status status);

/// "none", "elimination", "messages", "branches".
[[nodiscard]] const char* to_string(Certificate::Kind kind);

}  // namespace torchalgo::pbqp
