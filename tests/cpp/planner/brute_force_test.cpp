// SPDX-License-Identifier: BSD-3-Clause
#include "planner/brute_force.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>

namespace torchalgo::planner_test {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max() / 4;

using LayoutsOfValue = std::set<Layout>;

Ticks cost_of(const Sample& sample, const Candidate& candidate) {
  return find_cost(sample.costs, cost_key(candidate.problem, candidate.primitive))->ticks;
}

// The cheapest direct change of one value's layout.
class Changes {
 public:
  explicit Changes(const Sample& sample, const Value& value) {
    for (auto& row : direct_) row.fill(kNever);
    for (const Candidate& transform : sample.transforms) {
      const auto& problem = std::get<TransformProblem>(transform.problem);
      if (std::vector<std::int64_t>{problem.n, problem.c, problem.h, problem.w} != value.sizes)
        continue;
      const int from = position(transform.primitive.src);
      const int to = position(transform.primitive.dst);
      direct_[from][to] = std::min(direct_[from][to], cost_of(sample, transform));
    }
  }

  // Tries every map from layouts to their sources (kNone: not made), and drops what is no tree.
  Ticks tree(Layout root, const LayoutsOfValue& wanted) {
    const auto [it, is_new] = known_.try_emplace({root, wanted}, kNever);
    if (!is_new) return it->second;
    int maps = 1;
    for (int layout = 0; layout < kNone; ++layout) maps *= kNone + 1;
    for (int code = 0; code < maps; ++code) {
      std::array<int, kNone> source = {};
      int rest = code;
      for (int& from : source) {
        from = rest % (kNone + 1);
        rest /= kNone + 1;
      }
      it->second = std::min(it->second, cost_of_map(source, position(root), wanted));
    }
    return it->second;
  }

 private:
  static constexpr int kNone = kAllLayouts.size();

  static int position(Layout layout) {
    const auto found = std::find(kAllLayouts.begin(), kAllLayouts.end(), layout);
    return static_cast<int>(found - kAllLayouts.begin());
  }

  Ticks cost_of_map(const std::array<int, kNone>& source, int root,
                    const LayoutsOfValue& wanted) const {
    if (source[root] != kNone) return kNever;
    Ticks sum = 0;
    for (int layout = 0; layout < kNone; ++layout) {
      if (layout == root) continue;
      if (source[layout] == kNone) {
        if (wanted.count(kAllLayouts[layout]) > 0) return kNever;
        continue;
      }
      int at = layout;
      for (int steps = 0; at != root && at != kNone && steps < kNone; ++steps) at = source[at];
      if (at != root) return kNever;
      const bool was_exact = kAllLayouts[root] != Layout::kNhwcBf16;
      if (was_exact && kAllLayouts[source[layout]] == Layout::kNhwcBf16) return kNever;
      sum = std::min(kNever, sum + direct_[source[layout]][layout]);
    }
    return sum;
  }

  std::array<std::array<Ticks, kNone>, kNone> direct_;
  std::map<std::pair<Layout, LayoutsOfValue>, Ticks> known_;
};

// The layouts that a choice of candidates writes and reads.
struct Traffic {
  std::vector<std::optional<Layout>> written;
  std::vector<LayoutsOfValue> read;
};

Direction direction_of(const Problem& problem) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  return conv == nullptr ? Direction::kForward : conv->direction;
}

Traffic border_traffic(const Graph& graph) {
  Traffic traffic{std::vector<std::optional<Layout>>(graph.values.size()),
                  std::vector<LayoutsOfValue>(graph.values.size())};
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    traffic.written[graph.inputs[i]] = graph.input_layouts[i];
  }
  for (const Node& node : graph.nodes) {
    if (node.problem) continue;
    for (const int value : node.outputs) traffic.written[value] = node.makes;
    if (node.reads_shape_only) continue;
    for (const int value : node.inputs) traffic.read[value].insert(node.reads);
  }
  for (const int value : graph.outputs) {
    const int producer = graph.values[value].producer;
    const bool is_weights =
        producer >= 0 && graph.nodes[producer].problem &&
        direction_of(*graph.nodes[producer].problem) == Direction::kBackwardFilter;
    if (!is_weights) traffic.read[value].insert(Layout::kNchw);
  }
  return traffic;
}

// In a gradient's problem, src and dst are those of the forward convolution.
Layout read_by(const Candidate& candidate, std::size_t input) {
  const Direction direction = direction_of(candidate.problem);
  const bool is_diff_dst = direction == Direction::kBackwardData ||
                           (direction == Direction::kBackwardFilter && input == 1);
  return is_diff_dst ? candidate.primitive.dst : candidate.primitive.src;
}

Layout written_by(const Candidate& candidate) {
  const bool is_diff_src = direction_of(candidate.problem) == Direction::kBackwardData;
  return is_diff_src ? candidate.primitive.src : candidate.primitive.dst;
}

void add_traffic(const Graph& graph, const Candidate& candidate, Traffic& traffic) {
  const std::vector<int>& inputs = graph.nodes[candidate.covers[0]].inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    traffic.read[inputs[i]].insert(read_by(candidate, i));
  }
  for (std::size_t i = 1; i < candidate.covers.size(); ++i) {
    const int link = graph.nodes[candidate.covers[i - 1]].outputs[0];
    for (const int value : graph.nodes[candidate.covers[i]].inputs) {
      if (value != link) traffic.read[value].insert(candidate.primitive.dst);
    }
  }
  for (const int value : graph.nodes[candidate.covers.back()].outputs) {
    traffic.written[value] = written_by(candidate);
  }
}

using Use = std::function<Amounts(const Candidate&)>;

class Enumeration {
 public:
  Enumeration(const Sample& sample, const Usable& usable, Use use, const Amounts& limit)
      : sample_(sample), usable_(usable), use_(std::move(use)), limit_(limit) {
    for (const Value& value : sample.graph.values) changes_.emplace_back(sample, value);
    covered_.assign(sample.graph.nodes.size(), false);
    chosen_.assign(sample.graph.nodes.size(), nullptr);
  }

  std::optional<Ticks> run() {
    visit(0, 0);
    return best_ < kNever ? std::optional(best_) : std::nullopt;
  }

 private:
  void visit(std::size_t node, Ticks so_far) {
    if (so_far >= best_ || limit_[0] < 0 || limit_[1] < 0) return;
    if (node == sample_.graph.nodes.size()) return finish(so_far);
    if (covered_[node] || !sample_.graph.nodes[node].problem) return visit(node + 1, so_far);
    for (const Candidate& candidate : sample_.candidates.by_anchor[node]) {
      const bool is_free = std::none_of(candidate.covers.begin(), candidate.covers.end(),
                                        [&](int n) { return covered_[n]; });
      if (!is_free || (usable_ && !usable_(candidate))) continue;
      for (const int n : candidate.covers) covered_[n] = true;
      chosen_[node] = &candidate;
      const Amounts before = limit_;
      const Amounts use = use_ ? use_(candidate) : Amounts{};
      for (std::size_t r = 0; r < use.size(); ++r) limit_[r] -= use[r];
      visit(node + 1, so_far + cost_of(sample_, candidate));
      limit_ = before;
      chosen_[node] = nullptr;
      for (const int n : candidate.covers) covered_[n] = false;
    }
  }

  void finish(Ticks so_far) {
    Traffic traffic = border_traffic(sample_.graph);
    for (const Candidate* candidate : chosen_) {
      if (candidate != nullptr) add_traffic(sample_.graph, *candidate, traffic);
    }
    for (std::size_t v = 0; v < changes_.size() && so_far < best_; ++v) {
      if (traffic.read[v].empty()) continue;
      so_far += changes_[v].tree(traffic.written[v].value(), traffic.read[v]);
    }
    best_ = std::min(best_, so_far);
  }

  const Sample& sample_;
  const Usable& usable_;
  const Use use_;
  Amounts limit_;
  std::vector<Changes> changes_;
  std::vector<bool> covered_;
  std::vector<const Candidate*> chosen_;
  Ticks best_ = kNever;
};

// The candidate that the plan means for `node`; null if there is none.
const Candidate* candidate_of(const Sample& sample, const Plan& plan, const PlanNode& planned,
                              int node) {
  std::vector<int> covers = {node};
  for (std::size_t n = 0; n < sample.graph.nodes.size(); ++n) {
    for (const PlanNode& other : plan.nodes) {
      if (other.name == sample.graph.nodes[n].name && other.absorbed_by == planned.name) {
        covers.push_back(static_cast<int>(n));
      }
    }
  }
  for (const Candidate& c : sample.candidates.by_anchor[node]) {
    if (c.covers == covers && c.primitive == planned.primitive &&
        to_string(c.problem) == planned.problem) {
      return &c;
    }
  }
  return nullptr;
}

std::optional<Ticks> replay_transforms(const Sample& sample, const Plan& plan,
                                       const Traffic& traffic, std::string& why) {
  std::map<std::string, LayoutsOfValue> present;
  for (std::size_t v = 0; v < traffic.written.size(); ++v) {
    if (traffic.written[v]) present[sample.graph.values[v].name] = {*traffic.written[v]};
  }
  Ticks sum = 0;
  for (const PlanTransform& transform : plan.transforms) {
    const CostKey key{transform.problem, transform.primitive.name, transform.primitive.src,
                      transform.primitive.dst};
    const std::optional<Cost> cost = find_cost(sample.costs, key);
    LayoutsOfValue& layouts = present[transform.value];
    why = "transform of " + transform.value + ": " + to_string(transform.primitive);
    if (!cost || cost->ticks != transform.cost) return std::nullopt;
    if (layouts.count(transform.primitive.src) == 0) return std::nullopt;
    if (!layouts.insert(transform.primitive.dst).second) return std::nullopt;
    sum += cost->ticks;
  }
  for (std::size_t v = 0; v < traffic.read.size(); ++v) {
    const LayoutsOfValue& layouts = present[sample.graph.values[v].name];
    why = "a layout of " + sample.graph.values[v].name + " is missing";
    if (!std::includes(layouts.begin(), layouts.end(), traffic.read[v].begin(),
                       traffic.read[v].end())) {
      return std::nullopt;
    }
  }
  why.clear();
  return sum;
}

}  // namespace

std::optional<Ticks> least_cost(const Sample& sample, const Usable& usable) {
  return Enumeration(sample, usable, nullptr, {}).run();
}

std::optional<Ticks> least_cost_within(const Sample& sample, const Use& use, const Amounts& limit) {
  const Usable everything;
  return Enumeration(sample, everything, use, limit).run();
}

std::optional<Ticks> replay(const Sample& sample, const Plan& plan, std::string& why) {
  const Graph& graph = sample.graph;
  Traffic traffic = border_traffic(graph);
  Ticks sum = 0;
  auto planned = plan.nodes.begin();
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!graph.nodes[n].problem) continue;
    why = "nodes differ at " + graph.nodes[n].name;
    if (planned == plan.nodes.end() || planned->name != graph.nodes[n].name) return std::nullopt;
    if (planned->absorbed_by.empty()) {
      const Candidate* c = candidate_of(sample, plan, *planned, static_cast<int>(n));
      why = "no candidate is meant by " + planned->name;
      if (c == nullptr || cost_of(sample, *c) != planned->cost) return std::nullopt;
      add_traffic(graph, *c, traffic);
      sum += planned->cost;
    }
    ++planned;
  }
  why = "too many nodes";
  if (planned != plan.nodes.end()) return std::nullopt;
  const std::optional<Ticks> transforms = replay_transforms(sample, plan, traffic, why);
  if (!transforms) return std::nullopt;
  why.clear();
  return sum + *transforms;
}

TEST(BruteForce, FindsTheCostThatWasWorkedOutByHand) {
  FlowBuilder flow;
  flow.output(flow.relu(flow.conv(flow.input(8), 8)));
  Sample sample{flow.graph(), {}, {}, {}};
  const Candidate conv = candidate(sample.graph, {0}, "test.a", Layout::kNchw, Layout::kNChw16c);
  const Candidate relu = candidate(sample.graph, {1}, "test.a", Layout::kNhwc, Layout::kNhwc);
  sample.candidates = {{{conv}, {relu}}, {{}, {}}};
  add_transforms_and_costs(
      sample, [] { return 100; },
      [](Layout from, Layout to) { return from != Layout::kNChw16c || to != Layout::kNhwc; });
  EXPECT_EQ(least_cost(sample), std::nullopt);
  add_transforms_and_costs(sample, [] { return 30; });
  EXPECT_EQ(least_cost(sample), 100 + 100 + 30 + 100);
}

}  // namespace torchalgo::planner_test
