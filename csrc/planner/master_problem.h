// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <vector>

#include "pbqp/problem.h"
#include "planner/resource_use.h"

namespace torchalgo::planner {

/// The restricted master problem of a column generation: a linear program that gives the Lagrange
/// multipliers of limited resources.
///
/// Its columns are the choices seen so far. Its variables are shares that add up to 1, so that it
/// finds the cheapest mixture of choices whose mean use keeps the limits. The dual values of the
/// limits are the multipliers: by so much the cost would fall if a limit were raised by one unit.
/// Among the choices seen they give the highest Lagrangian bound. A choice whose Lagrangian is
/// smaller at these multipliers becomes a new column; if there is none, the multipliers are the
/// best ones of all. Doubles are enough, because any multipliers give a valid bound. The program
/// has three rows, so that the simplex method keeps the inverse of its basis as a whole. Source:
/// Dantzig & Wolfe 1960, Operations Research 8, pp. 101-111.
class MasterProblem {
 public:
  /// @param most_cost  above the cost of any choice.
  /// @param most_use  the largest possible sum of each use; 0 if the resource is not limited.
  MasterProblem(const ResourceUse& limit, double most_cost,
                const std::array<double, kMostResources>& most_use);

  /// Adds a choice and solves the program again. Returns false if that changes nothing.
  bool add_column(pbqp::Cost cost, const ResourceUse& use, const std::vector<int>& choice);

  /// Returns the multiplier of each resource, in units of cost per unit of use.
  [[nodiscard]] std::array<double, kMostResources> multipliers() const;

  /// Returns the choices in the basis, which are those with a share.
  [[nodiscard]] std::vector<std::vector<int>> basic_choices() const;

 private:
  static constexpr std::size_t kRows = kMostResources + 1;  // limits, then the sum of the shares
  using Column = std::array<double, kRows>;
  struct Variable {
    Column column = {};
    double cost = 0;
    std::vector<int> choice;  // empty for the slack of a limit and for the artificial variable
  };

  [[nodiscard]] Column duals() const;
  [[nodiscard]] double reduced_cost(const Variable& variable, const Column& duals) const;
  bool enter(std::size_t entering);

  ResourceUse limit_;
  double cost_unit_;
  std::array<double, kMostResources> use_unit_ = {};
  std::vector<Variable> variables_;
  std::array<std::size_t, kRows> basis_ = {};
  std::array<Column, kRows> inverse_ = {};  // of the basis, by rows
  Column shares_ = {};                      // of the basis
};

}  // namespace torchalgo::planner
