// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/certificate.h"

#include "pbqp/text.h"

namespace torchalgo::pbqp {

const char* to_string(Status status) {
  switch (status) {
    case Status::kOptimal:
      return "optimal";
    case Status::kFeasible:
      return "feasible";
    case Status::kInfeasible:
      return "infeasible";
    case Status::kUnknown:
      break;
  }
  return "unknown";
}

const char* to_string(Certificate::Kind kind) {
  switch (kind) {
    case Certificate::Kind::kElimination:
      return "elimination";
    case Certificate::Kind::kMessages:
      return "messages";
    case Certificate::Kind::kBranches:
      return "branches";
    case Certificate::Kind::kNone:
      break;
  }
  return "none";
}

std::string certificate_text(const Problem& problem, const Solution& solution) {
  const bool has_choice =
      solution.status == Status::kOptimal || solution.status == Status::kFeasible;
  std::string text = "pbqp-certificate 2\nproblem " + hash_of(problem) + "\n";
  if (has_choice) {
    text += "choice";
    for (int alternative : solution.choice) text.append(" ").append(std::to_string(alternative));
    text += "\ncost " + std::to_string(solution.cost) + "\n";
  }
  const bool is_infeasible = solution.lower_bound == kForbidden;
  text += "bound " + (is_infeasible ? "-" : std::to_string(solution.lower_bound)) + "\n";
  return text + solution.certificate.proof;
}

}  // namespace torchalgo::pbqp
