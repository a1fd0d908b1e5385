// SPDX-License-Identifier: BSD-3-Clause
#include "planner/master_problem.h"

#include <algorithm>
#include <limits>

namespace torchalgo::planner {
namespace {

constexpr double kTolerance = 1e-12;
constexpr int kMaxPivots = 64;  // per choice: with rounding the simplex method may cycle

}  // namespace

// The first basis has the slack of each limit, and an artificial variable that costs more than any
// choice. Limits that are raised a little keep the first basis from being degenerate.
MasterProblem::MasterProblem(const ResourceUse& limit, double most_cost,
                             const std::array<double, kMostResources>& most_use)
    : limit_(limit), cost_unit_(std::max(1.0, most_cost)) {
  for (std::size_t r = 0; r < kRows; ++r) {
    Variable start;
    start.column[r] = 1;
    start.cost = r < kMostResources ? 0 : 1;
    variables_.push_back(std::move(start));
    basis_[r] = r;
    inverse_[r][r] = 1;
    shares_[r] = r < kMostResources ? 1e-9 * static_cast<double>(r + 1) : 1;
    if (r < kMostResources) use_unit_[r] = std::max(1.0, most_use[r]);
  }
}

bool MasterProblem::add_column(pbqp::Cost cost, const ResourceUse& use,
                               const std::vector<int>& choice) {
  Variable entering{{}, static_cast<double>(cost) / cost_unit_, choice};
  for (std::size_t r = 0; r < kMostResources; ++r) {
    entering.column[r] = static_cast<double>(use[r] - limit_[r]) / use_unit_[r];
  }
  entering.column[kMostResources] = 1;
  if (reduced_cost(entering, duals()) >= -kTolerance) return false;
  variables_.push_back(std::move(entering));
  bool has_changed = false;
  for (int pivots = 0; pivots < kMaxPivots; ++pivots) {
    const Column prices = duals();
    const auto cheaper = [&](const Variable& a, const Variable& b) {
      return reduced_cost(a, prices) < reduced_cost(b, prices);
    };
    const auto best = std::min_element(variables_.begin(), variables_.end(), cheaper);
    if (reduced_cost(*best, prices) >= -kTolerance) break;
    if (!enter(static_cast<std::size_t>(best - variables_.begin()))) break;
    has_changed = true;
  }
  return has_changed;
}

MasterProblem::Column MasterProblem::duals() const {
  Column duals = {};
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t r = 0; r < kRows; ++r) duals[r] += variables_[basis_[i]].cost * inverse_[i][r];
  }
  return duals;
}

double MasterProblem::reduced_cost(const Variable& variable, const Column& duals) const {
  double cost = variable.cost;
  for (std::size_t r = 0; r < kRows; ++r) cost -= duals[r] * variable.column[r];
  return cost;
}

// Pivots once. Returns false if no variable leaves the basis.
bool MasterProblem::enter(std::size_t entering) {
  Column direction = {};
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t r = 0; r < kRows; ++r)
      direction[i] += inverse_[i][r] * variables_[entering].column[r];
  }
  std::size_t leaving = kRows;
  double step = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < kRows; ++i) {
    if (direction[i] <= kTolerance || shares_[i] / direction[i] >= step) continue;
    leaving = i;
    step = std::max(0.0, shares_[i] / direction[i]);
  }
  if (leaving == kRows) return false;
  const Column pivot = inverse_[leaving];
  for (std::size_t i = 0; i < kRows; ++i) {
    const double factor = (i == leaving ? direction[i] - 1 : direction[i]) / direction[leaving];
    for (std::size_t r = 0; r < kRows; ++r) inverse_[i][r] -= factor * pivot[r];
    shares_[i] -= i == leaving ? 0 : step * direction[i];
  }
  shares_[leaving] = step;
  basis_[leaving] = entering;
  return true;
}

std::array<double, kMostResources> MasterProblem::multipliers() const {
  const Column prices = duals();
  std::array<double, kMostResources> result = {};
  for (std::size_t r = 0; r < kMostResources; ++r) {
    result[r] = std::max(0.0, -prices[r] * cost_unit_ / use_unit_[r]);
  }
  return result;
}

std::vector<std::vector<int>> MasterProblem::basic_choices() const {
  std::vector<std::vector<int>> choices;
  for (const std::size_t basic : basis_) {
    if (!variables_[basic].choice.empty()) choices.push_back(variables_[basic].choice);
  }
  return choices;
}

}  // namespace torchalgo::planner
