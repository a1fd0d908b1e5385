// SPDX-License-Identifier: BSD-3-Clause
#include "planner/multipliers.h"

#include <algorithm>
#include <limits>

namespace torchalgo::planner {
namespace {

constexpr double kTolerance = 1e-12;
constexpr int kMostPivots = 64;  // per choice; rounding may make the simplex method turn in circles

}  // namespace

// The basis at the start: all room of each resource is spare, and there is no choice at all, which
// is dearer than any. A little room more than there is keeps the start from being degenerate.
Multipliers::Multipliers(const Uses& limit, double most_cost,
                         const std::array<double, kMostResources>& most_use)
    : limit_(limit), cost_unit_(std::max(1.0, most_cost)) {
  for (std::size_t r = 0; r < kRows; ++r) {
    Point start;
    start.column[r] = 1;
    start.cost = r < kMostResources ? 0 : 1;
    points_.push_back(std::move(start));
    basis_[r] = r;
    inverse_[r][r] = 1;
    shares_[r] = r < kMostResources ? 1e-9 * static_cast<double>(r + 1) : 1;
    if (r < kMostResources) use_unit_[r] = std::max(1.0, most_use[r]);
  }
}

bool Multipliers::add(pbqp::Cost cost, const Uses& use, const std::vector<int>& choice) {
  Point point{{}, static_cast<double>(cost) / cost_unit_, choice};
  for (std::size_t r = 0; r < kMostResources; ++r) {
    point.column[r] = static_cast<double>(use[r] - limit_[r]) / use_unit_[r];
  }
  point.column[kMostResources] = 1;
  if (reduced_cost(point, duals()) >= -kTolerance) return false;
  points_.push_back(std::move(point));
  bool has_changed = false;
  for (int pivots = 0; pivots < kMostPivots; ++pivots) {
    const Column prices = duals();
    const auto cheaper = [&](const Point& a, const Point& b) {
      return reduced_cost(a, prices) < reduced_cost(b, prices);
    };
    const auto best = std::min_element(points_.begin(), points_.end(), cheaper);
    if (reduced_cost(*best, prices) >= -kTolerance) break;
    if (!enter(static_cast<std::size_t>(best - points_.begin()))) break;
    has_changed = true;
  }
  return has_changed;
}

Multipliers::Column Multipliers::duals() const {
  Column duals = {};
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t r = 0; r < kRows; ++r) duals[r] += points_[basis_[i]].cost * inverse_[i][r];
  }
  return duals;
}

double Multipliers::reduced_cost(const Point& point, const Column& duals) const {
  double cost = point.cost;
  for (std::size_t r = 0; r < kRows; ++r) cost -= duals[r] * point.column[r];
  return cost;
}

// One step of the simplex method. False if nothing leaves the basis.
bool Multipliers::enter(std::size_t point) {
  Column direction = {};
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t r = 0; r < kRows; ++r)
      direction[i] += inverse_[i][r] * points_[point].column[r];
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
  basis_[leaving] = point;
  return true;
}

std::array<double, kMostResources> Multipliers::prices() const {
  const Column prices = duals();
  std::array<double, kMostResources> result = {};
  for (std::size_t r = 0; r < kMostResources; ++r) {
    result[r] = std::max(0.0, -prices[r] * cost_unit_ / use_unit_[r]);
  }
  return result;
}

std::vector<std::vector<int>> Multipliers::mixture() const {
  std::vector<std::vector<int>> choices;
  for (const std::size_t point : basis_) {
    if (!points_[point].choice.empty()) choices.push_back(points_[point].choice);
  }
  return choices;
}

}  // namespace torchalgo::planner
