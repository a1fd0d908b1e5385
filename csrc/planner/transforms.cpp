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

// Per set of layouts the cheapest way to make exactly these from the root, and its last hop. Every
// arborescence has an order in which each layout follows its source, so sets grow by one layout at
// a time.
struct Growth {
  std::array<Ticks, kLayoutSetCount> cost;
  std::array<Hop, kLayoutSetCount> last;
};

Growth grow(const LayoutChanges& changes, Layout root) {
  Growth growth;
  growth.cost.fill(pbqp::kForbidden);
  growth.cost[set_of(root)] = 0;
  for (int set = 0; set < kLayoutSetCount; ++set) {
    if (growth.cost[set] == pbqp::kForbidden) continue;
    for (const Layout from : kAllLayouts) {
      if (!includes(set, set_of(from))) continue;
      for (const Layout to : kAllLayouts) {
        const PricedCandidate& hop = changes.direct[index_of(from)][index_of(to)];
        if (hop.candidate == nullptr || includes(set, set_of(to))) continue;
        const int grown = set | set_of(to);
        const Ticks cost = growth.cost[set] + hop.cost.ticks;
        if (cost >= growth.cost[grown]) continue;
        growth.cost[grown] = cost;
        growth.last[grown] = {from, to};
      }
    }
  }
  return growth;
}

// The cheapest set that holds what is wanted; the smallest of equally cheap ones.
int cheapest_superset(const Growth& growth, LayoutSet wanted) {
  int best = kLayoutSetCount - 1;
  const auto rank = [&](int set) {
    return std::tuple(growth.cost[set], std::popcount(unsigned(set)), set);
  };
  for (int set = 0; set < kLayoutSetCount; ++set) {
    if (includes(set, wanted) && rank(set) < rank(best)) best = set;
  }
  return best;
}

using ShapeKey =
    std::tuple<DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>;

ShapeKey key_of(const TransformProblem& p) { return {p.dtype, p.n, p.c, p.d, p.h, p.w, p.is_3d}; }

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
    const auto [it, is_new] =
        shapes.index.try_emplace(key_of(*flow[v].shape), static_cast<int>(shapes.layouts.size()));
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

void close(LayoutChanges& changes) {
  for (const Layout root : kAllLayouts) {
    const Growth growth = grow(changes, root);
    for (int set = 0; set < kLayoutSetCount; ++set) {
      changes.tree_cost[index_of(root)][set] =
          growth.cost[cheapest_superset(growth, static_cast<LayoutSet>(set))];
    }
  }
}

std::vector<Hop> cheapest_tree(const LayoutChanges& changes, Layout root, LayoutSet wanted) {
  const Growth growth = grow(changes, root);
  int set = cheapest_superset(growth, wanted);
  TORCHALGO_ASSERT(growth.cost[set] != pbqp::kForbidden);
  std::vector<Hop> hops;
  for (; set != set_of(root); set &= ~set_of(hops.back().to)) hops.push_back(growth.last[set]);
  std::reverse(hops.begin(), hops.end());
  return hops;
}

TransformCosts price_transforms(const std::vector<ValueFlow>& flow,
                                const std::vector<LayoutSet>& at_value, LayoutSet way_layouts,
                                const std::vector<Candidate>& transforms, const CostTable& costs,
                                std::set<CostKey>& missing, std::int64_t workspace_limit_bytes) {
  const Shapes shapes = collect_shapes(flow, at_value);
  TransformCosts priced{std::vector<LayoutChanges>(shapes.layouts.size()), shapes.of_value};
  for (const Candidate& transform : transforms) {
    const auto* problem = std::get_if<TransformProblem>(&transform.problem);
    TORCHALGO_ASSERT(problem != nullptr);
    const auto shape = shapes.index.find(key_of(*problem));
    const Layout from = transform.primitive.src, to = transform.primitive.dst;
    if (shape == shapes.index.end() || from == to) continue;
    if (transform.primitive.workspace_bytes > workspace_limit_bytes) continue;
    const LayoutSet usable = way_layouts | shapes.layouts[shape->second];
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
  for (LayoutChanges& changes : priced.shapes) close(changes);
  return priced;
}

}  // namespace torchalgo::planner
