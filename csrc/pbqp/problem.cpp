// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/problem.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace torchalgo::pbqp {
namespace {

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument("pbqp: " + text); }

std::string node_name(int node) { return "node " + std::to_string(node); }

std::string edge_name(const Edge& edge, std::size_t position) {
  return "edge " + std::to_string(position) + " (nodes " + std::to_string(edge.u) + " and " +
         std::to_string(edge.v) + ")";
}

/// Checks the costs and adds the largest finite one to `total`, so that no sum of a choice can
/// overflow later. It calls `name()` only to report an error.
template <typename Name>
void count_costs(const std::vector<Cost>& costs, const Name& name, Cost& total) {
  Cost largest = 0;
  for (Cost cost : costs) {
    if (cost < 0) fail(name() + " has the negative cost " + std::to_string(cost));
    if (cost != kForbidden) largest = std::max(largest, cost);
  }
  // kForbidden must stay above every sum.
  if (largest >= kForbidden - total)
    fail(name() + " has the cost " + std::to_string(largest) +
         ", with which the largest possible sum of costs exceeds 64 bits; use a coarser unit");
  total += largest;
}

void check_shape(const Problem& problem, std::size_t position) {
  const Edge& edge = problem.edges[position];
  const int nodes = static_cast<int>(problem.node_costs.size());
  if (edge.u < 0 || edge.u >= nodes || edge.v < 0 || edge.v >= nodes)
    fail(edge_name(edge, position) + " joins a node that is not there; the problem has " +
         std::to_string(nodes));
  if (edge.u == edge.v)
    fail(edge_name(edge, position) + " joins a node to itself; add its costs to the node's");
  const std::size_t cells = problem.node_costs[edge.u].size() * problem.node_costs[edge.v].size();
  if (edge.matrix.size() != cells)
    fail(edge_name(edge, position) + " has " + std::to_string(edge.matrix.size()) +
         " costs, its nodes' alternatives " + "need " +
         std::to_string(problem.node_costs[edge.u].size()) + " x " +
         std::to_string(problem.node_costs[edge.v].size()));
}

void check_choice(const Problem& problem, const std::vector<int>& choice) {
  if (choice.size() != problem.node_costs.size())
    fail("a choice of length " + std::to_string(choice.size()) + " for " +
         std::to_string(problem.node_costs.size()) + " nodes");
  for (std::size_t i = 0; i < choice.size(); ++i)
    if (choice[i] < 0 || choice[i] >= static_cast<int>(problem.node_costs[i].size()))
      fail("the choice picks alternative " + std::to_string(choice[i]) + " of " +
           node_name(static_cast<int>(i)) + ", which has " +
           std::to_string(problem.node_costs[i].size()));
}

}  // namespace

void check_problem(const Problem& problem) {
  if (problem.node_costs.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
    fail("more nodes than an int can number");
  Cost total = 0;
  for (std::size_t i = 0; i < problem.node_costs.size(); ++i)
    count_costs(
        problem.node_costs[i], [&] { return node_name(static_cast<int>(i)); }, total);
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    check_shape(problem, e);
    count_costs(
        problem.edges[e].matrix, [&] { return edge_name(problem.edges[e], e); }, total);
  }
}

Cost evaluate(const Problem& problem, const std::vector<int>& choice) {
  check_choice(problem, choice);
  Cost total = 0;
  bool forbidden = false;
  const auto count = [&](Cost cost) {
    if (cost == kForbidden)
      forbidden = true;
    else if (__builtin_add_overflow(total, cost, &total))
      fail("the cost of this choice exceeds 64 bits; use a coarser unit");
  };
  for (std::size_t i = 0; i < choice.size(); ++i) count(problem.node_costs[i][choice[i]]);
  for (std::size_t e = 0; e < problem.edges.size(); ++e) {
    check_shape(problem, e);
    const Edge& edge = problem.edges[e];
    count(edge.matrix[choice[edge.u] * problem.node_costs[edge.v].size() + choice[edge.v]]);
  }
  return forbidden ? kForbidden : total;
}

}  // namespace torchalgo::pbqp
