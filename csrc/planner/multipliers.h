// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <vector>

#include "pbqp/problem.h"
#include "planner/uses.h"

namespace torchalgo::planner {

/// The search for the multipliers of limited resources at which the Lagrangian, cost + sum of
/// multiplier * (use - limit), bounds the cost of the choices within the limits best.
///
/// Of the choices seen so far the cheapest mixture is kept whose mean use is within the limits; its
/// prices are the multipliers. A choice with a smaller Lagrangian at these enters the mixture; when
/// there is none they are the best ones. Rounding only costs time: any multipliers give a bound.
/// Source: Dantzig & Wolfe 1960, Operations Research 8, pp. 101-111.
class Multipliers {
 public:
  /// @param most_cost  above the cost of any choice.
  /// @param most_use  the largest sum of each use; 0: the resource is not limited.
  Multipliers(const Uses& limit, double most_cost,
              const std::array<double, kMostResources>& most_use);

  /// False if the choice changes nothing.
  bool add(pbqp::Cost cost, const Uses& use, const std::vector<int>& choice);

  /// Price of one unit of each resource, in units of cost.
  [[nodiscard]] std::array<double, kMostResources> prices() const;

  /// The choices that are mixed.
  [[nodiscard]] std::vector<std::vector<int>> mixture() const;

 private:
  static constexpr std::size_t kRows = kMostResources + 1;  // uses, then shares that add up to 1
  using Column = std::array<double, kRows>;
  struct Point {
    Column column = {};
    double cost = 0;
    std::vector<int> choice;  // empty: spare room of a resource, or "no choice at all"
  };

  [[nodiscard]] Column duals() const;
  [[nodiscard]] double reduced_cost(const Point& point, const Column& duals) const;
  bool enter(std::size_t point);

  Uses limit_;
  double cost_unit_;
  std::array<double, kMostResources> use_unit_ = {};
  std::vector<Point> points_;
  std::array<std::size_t, kRows> basis_ = {};
  std::array<Column, kRows> inverse_ = {};  // of the basis, by rows
  Column shares_ = {};                      // of the basis
};

}  // namespace torchalgo::planner
