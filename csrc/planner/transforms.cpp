// SPDX-License-Identifier: BSD-3-Clause
#include "planner/transforms.h"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

#include "base/error.h"
#include "pbqp/problem.h"

namespace torchalgo::planner {
namespace {

// The least cost of having a value in exactly the layouts of a set, starting from the root, and the
// last hop. Every arborescence has an order in which each layout follows its source. So each set is
// made from a set with one layout less.
struct SetCosts {
  std::array<Ticks, kLayoutSetCount> cost;
  std::array<Hop, kLayoutSetCount> last;
};

// Returns true if a value that is written in the model's type would be rounded on its way to a
// layout of this type.
bool loses_digits(Layout root, Layout from, Layout to) {
  return is_typed(from) && !is_typed(to) && !is_typed(root);
}

SetCosts costs_of_sets(const LayoutChanges& changes, Layout root) {
  SetCosts sets;
  sets.cost.fill(pbqp::kForbidden);
  sets.cost[set_of(root)] = 0;
  for (int set = 0; set < kLayoutSetCount; ++set) {
    if (sets.cost[set] == pbqp::kForbidden) continue;
    for (const Layout from : kAllLayouts) {
      if (!includes(LayoutSet(set), set_of(from))) continue;
      for (const Layout to : kAllLayouts) {
        const PricedCandidate& hop = changes.direct[index_of(from)][index_of(to)];
        if (hop.candidate == nullptr || includes(LayoutSet(set), set_of(to))) continue;
        if (loses_digits(root, from, to)) continue;
        const int larger = set | set_of(to);
        const Ticks cost = sets.cost[set] + hop.cost.ticks;
        if (cost >= sets.cost[larger]) continue;
        sets.cost[larger] = cost;
        sets.last[larger] = {from, to};
      }
    }
  }
  return sets;
}

// Returns the cheapest set that includes `wanted`, and the smallest one if several are equally
// cheap.
int cheapest_superset(const SetCosts& sets, LayoutSet wanted) {
  int best = kLayoutSetCount - 1;
  const auto rank = [&](int set) {
    return std::tuple(sets.cost[set], std::popcount(unsigned(set)), set);
  };
  for (int set = 0; set < kLayoutSetCount; ++set) {
    if (includes(LayoutSet(set), wanted) && rank(set) < rank(best)) best = set;
  }
  return best;
}

using ShapeKey = std::tuple<DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                            std::int64_t, bool, bool>;

ShapeKey key_of(const TransformProblem& p, bool has_blocked) {
  return {p.dtype, p.n, p.c, p.d, p.h, p.w, p.is_3d, has_blocked};
}

struct Shapes {
  std::map<ShapeKey, int> index;
  std::vector<LayoutSet> layouts;  // that occur at any value of the shape
  std::vector<int> of_value;
};

// Shape 0 has no transforms: values that cannot change, or never need to.
Shapes collect_shapes(const std::vector<ValueFlow>& flow, const std::vector<LayoutSet>& at_value) {
  Shapes shapes{{}, {0}, std::vector<int>(flow.size(), 0)};
  for (std::size_t v = 0; v < flow.size(); ++v) {
    if (!flow[v].shape || std::popcount(at_value[v]) < 2) continue;
    const auto [it, is_new] = shapes.index.try_emplace(key_of(*flow[v].shape, flow[v].has_blocked),
                                                       static_cast<int>(shapes.layouts.size()));
    if (is_new) shapes.layouts.push_back(0);
    shapes.layouts[it->second] |= at_value[v];
    shapes.of_value[v] = it->second;
  }
  return shapes;
}

bool is_better(const PricedCandidate& a, const PricedCandidate& b) {
  if (b.candidate == nullptr) return true;
  return std::tie(a.cost.ticks, a.candidate->primitive.name) <
         std::tie(b.cost.ticks, b.candidate->primitive.name);
}

}  // namespace

void compute_tree_costs(LayoutChanges& changes) {
  for (const Layout root : kAllLayouts) {
    const SetCosts sets = costs_of_sets(changes, root);
    for (int set = 0; set < kLayoutSetCount; ++set) {
      changes.tree_cost[index_of(root)][set] =
          sets.cost[cheapest_superset(sets, static_cast<LayoutSet>(set))];
    }
  }
}

std::vector<Hop> cheapest_tree(const LayoutChanges& changes, Layout root, LayoutSet wanted) {
  const SetCosts sets = costs_of_sets(changes, root);
  int set = cheapest_superset(sets, wanted);
  TORCHALGO_ASSERT(sets.cost[set] != pbqp::kForbidden);
  std::vector<Hop> hops;
  for (; set != set_of(root); set &= ~set_of(hops.back().to)) hops.push_back(sets.last[set]);
  std::reverse(hops.begin(), hops.end());
  return hops;
}

TransformCosts price_transforms(const std::vector<ValueFlow>& flow,
                                const std::vector<LayoutSet>& at_value,
                                LayoutSet intermediate_layouts,
                                const std::vector<Candidate>& transforms, const CostTable& costs,
                                std::set<CostKey>& missing, std::int64_t workspace_limit_bytes) {
  const Shapes shapes = collect_shapes(flow, at_value);
  TransformCosts priced{std::vector<LayoutChanges>(shapes.layouts.size()), shapes.of_value};
  for (const Candidate& transform : transforms) {
    const auto* problem = std::get_if<TransformProblem>(&transform.problem);
    TORCHALGO_ASSERT(problem != nullptr);
    const Layout from = transform.primitive.src, to = transform.primitive.dst;
    if (from == to || transform.primitive.workspace_bytes > workspace_limit_bytes) continue;
    for (const bool has_blocked : {true, false}) {
      const auto shape = shapes.index.find(key_of(*problem, has_blocked));
      if (shape == shapes.index.end()) continue;
      if (!has_blocked && (is_blocked(from) || is_blocked(to))) continue;
      const LayoutSet usable = intermediate_layouts | shapes.layouts[shape->second];
      if (!includes(usable, set_of(from) | set_of(to))) continue;
      CostKey key = cost_key(transform.problem, transform.primitive);
      const std::optional<Cost> cost = find_cost(costs, key);
      if (!cost) {
        missing.insert(std::move(key));
        continue;
      }
      PricedCandidate& best = priced.shapes[shape->second].direct[index_of(from)][index_of(to)];
      if (const PricedCandidate option{&transform, *cost}; is_better(option, best)) best = option;
    }
  }
  for (LayoutChanges& changes : priced.shapes) compute_tree_costs(changes);
  return priced;
}

}  // namespace torchalgo::planner
