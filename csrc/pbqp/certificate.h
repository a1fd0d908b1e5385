// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "pbqp/solve.h"

namespace torchalgo::pbqp {

/// Returns the text with which an independent program can check a solution of the problem. Its
/// lines are "pbqp-certificate 2", the SHA-256 of to_text(problem), the choice, cost, bound, and
/// the proof. docs/pbqp.md describes them. torchalgo/verify/check_certificate.py reads the text.
[[nodiscard]] std::string certificate_text(const Problem& problem, const Solution& solution);

/// Returns "optimal", "feasible", "infeasible" or "unknown".
[[nodiscard]] const char* to_string(Status status);

/// Returns "none", "elimination", "messages" or "branches".
[[nodiscard]] const char* to_string(Certificate::Kind kind);

}  // namespace torchalgo::pbqp
