// SPDX-License-Identifier: BSD-3-Clause
#include "planner/make_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "pbqp/certificate.h"
#include "pbqp/text.h"
#include "planner/brute_force.h"
#include "planner/sample.h"

namespace torchalgo::planner_test {
namespace {

PlanResult plan_of(const Sample& sample, const PlanOptions& options = {}) {
  return make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
}

PlanResult local_plan_of(const Sample& sample, const PlanOptions& options = {}) {
  return make_local_plan(sample.graph, sample.candidates, sample.transforms, sample.costs, options);
}

const PlanNode& node_named(const Plan& plan, const std::string& name) {
  const auto it = std::find_if(plan.nodes.begin(), plan.nodes.end(),
                               [&](const PlanNode& node) { return node.name == name; });
  if (it == plan.nodes.end()) throw std::out_of_range(name);
  return *it;
}

void expect_optimal(const Sample& sample, const Plan& plan, std::optional<Ticks> optimum) {
  std::string why;
  ASSERT_TRUE(optimum.has_value()) << describe(sample);
  EXPECT_EQ(plan.cost, *optimum) << describe(sample);
  EXPECT_EQ(plan.lower_bound, plan.cost);
  EXPECT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_EQ(replay(sample, plan, why), plan.cost) << why << "\n" << describe(sample);
  EXPECT_EQ(plan.structure_hash, structure_hash(sample.graph));
}

CostKey key_of(const Candidate& c) { return cost_key(c.problem, c.primitive); }

void renumber(std::vector<int>& indices, const std::vector<int>& place) {
  for (int& index : indices) {
    if (index >= 0) index = place[index];
  }
}

// Another order of nodes in which each still follows its inputs: where old node i goes.
std::vector<int> random_places(const Graph& graph, std::mt19937_64& random) {
  std::vector<int> place(graph.nodes.size(), -1);
  for (std::size_t next = 0; next < place.size();) {
    const int node = static_cast<int>(random() % place.size());
    const std::vector<int>& inputs = graph.nodes[node].inputs;
    const bool is_ready = std::all_of(inputs.begin(), inputs.end(), [&](int value) {
      const int producer = graph.values[value].producer;
      return producer < 0 || place[producer] >= 0;
    });
    if (place[node] < 0 && is_ready) place[node] = static_cast<int>(next++);
  }
  return place;
}

// The same data flow with other array positions of nodes and values.
Sample reordered(const Sample& sample, std::mt19937_64& random) {
  Sample other = sample;
  const std::vector<int> node_place = random_places(sample.graph, random);
  std::vector<int> value_place(sample.graph.values.size());
  std::iota(value_place.begin(), value_place.end(), 0);
  std::shuffle(value_place.begin(), value_place.end(), random);
  renumber(other.graph.inputs, value_place);
  renumber(other.graph.outputs, value_place);
  for (std::size_t v = 0; v < value_place.size(); ++v) {
    Value& value = other.graph.values[value_place[v]] = sample.graph.values[v];
    if (value.producer >= 0) value.producer = node_place[value.producer];
  }
  for (std::size_t n = 0; n < node_place.size(); ++n) {
    Node& node = other.graph.nodes[node_place[n]] = sample.graph.nodes[n];
    renumber(node.inputs, value_place);
    renumber(node.outputs, value_place);
    auto& list = other.candidates.by_anchor[node_place[n]] = sample.candidates.by_anchor[n];
    for (Candidate& c : list) {
      renumber(c.covers, node_place);
      renumber(c.inputs, value_place);
    }
  }
  return other;
}

// conv -> relu -> output; the convolution alone in nchw and nhwc, or with the ReLU in nChw16c.
struct ConvRelu {
  Sample sample;
  Candidate conv, conv_nhwc, fused, relu;
};

ConvRelu conv_relu() {
  FlowBuilder flow;
  flow.output(flow.relu(flow.conv(flow.input(8), 8)));
  const Graph graph = flow.graph();
  ConvRelu s;
  s.conv = candidate(graph, {0}, "test.plain", Layout::kNchw, Layout::kNchw);
  s.conv_nhwc = candidate(graph, {0}, "test.plain", Layout::kNhwc, Layout::kNhwc);
  s.fused = candidate(graph, {0, 1}, "test.fused", Layout::kNChw16c, Layout::kNChw16c);
  s.relu = candidate(graph, {1}, "test.plain", Layout::kNchw, Layout::kNchw);
  s.sample = {graph, {{{s.conv, s.conv_nhwc, s.fused}, {s.relu}}, {{}, {}}}, {}, {}};
  s.sample.costs.costs = {{key_of(s.conv), {1000}},
                          {key_of(s.conv_nhwc), {900}},
                          {key_of(s.fused), {700}},
                          {key_of(s.relu), {300}}};
  add_transforms_and_costs(s.sample, [] { return 100; });
  return s;
}

}  // namespace

TEST(MakePlan, EqualsBruteForceOnRandomDataFlows) {
  std::mt19937_64 random(20180224);
  int absorbed = 0, triples = 0, transforms = 0, multi_hop = 0;
  for (int i = 0; i < 10'000; ++i) {
    SCOPED_TRACE(fmt::format("sample {}", i));
    RandomSizes sizes;
    sizes.nodes = 2 + i % 7;
    sizes.max_cost = i % 3 == 0 ? 3 : 1000;  // a third of them full of ties
    const Sample sample = random_sample(random, sizes);
    const PlanResult result = plan_of(sample);
    EXPECT_TRUE(result.wanted.empty());
    expect_optimal(sample, result.plan, least_cost(sample));
    if (HasFailure()) return;
    for (const PlanNode& node : result.plan.nodes) {
      absorbed += !node.absorbed_by.empty();
      triples += node.problem.ends_with("+add+relu");
    }
    transforms += static_cast<int>(result.plan.transforms.size());
    for (const PlanTransform& a : result.plan.transforms) {
      for (const PlanTransform& b : result.plan.transforms) {
        multi_hop += a.value == b.value && a.primitive.dst == b.primitive.src;
      }
    }
  }
  EXPECT_GT(absorbed, 200);
  EXPECT_GT(triples, 10);
  EXPECT_GT(transforms, 500);
  EXPECT_GT(multi_hop, 20);
}

TEST(MakePlan, CarriesTheProofOfTheProblemThatItSolvesIfAskedTo) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20; ++i) {
    const Sample s = random_sample(random);
    const Plan plan = plan_of(s, {.with_certificate = true}).plan;
    const pbqp::Problem problem =
        pbqp::parse_problem(plan_problem_text(s.graph, s.candidates, s.transforms, s.costs));
    const pbqp::Solution solution = pbqp::solve(problem);
    EXPECT_EQ(solution.lower_bound, plan.lower_bound) << describe(s);
    EXPECT_EQ(plan.certificate, pbqp::certificate_text(problem, solution)) << describe(s);
    EXPECT_EQ(plan_of(s).plan.certificate, "");
  }
}

TEST(MakePlan, SharesATransformBetweenReaders) {
  FlowBuilder flow;
  const int src = flow.input(8);
  flow.output(flow.add(flow.conv(src, 8), flow.conv(src, 8)));
  Sample sample{flow.graph(), {}, {}, {}};
  const auto only = [&](int node, Layout src_layout, Layout dst) {
    return std::vector{candidate(sample.graph, {node}, "test.only", src_layout, dst)};
  };
  sample.candidates.by_anchor = {only(0, Layout::kNhwc, Layout::kNchw),
                                 only(1, Layout::kNhwc, Layout::kNchw),
                                 only(2, Layout::kNchw, Layout::kNchw)};
  add_transforms_and_costs(sample, [] { return 10; });
  const Plan plan = plan_of(sample).plan;
  EXPECT_EQ(plan.cost, 3 * 10 + 10);
  ASSERT_EQ(plan.transforms.size(), 1U);
  EXPECT_EQ(plan.transforms[0].producer, "");
  EXPECT_EQ(plan.transforms[0].problem, "transform_f32_n1c8h4w4_nchw_nhwc");
}

TEST(MakePlan, DescribesAFusedChainByItsAnchor) {
  const ConvRelu s = conv_relu();
  const Plan plan = plan_of(s.sample).plan;
  EXPECT_EQ(plan.cost, 700 + 2 * 100);
  ASSERT_EQ(plan.nodes.size(), 2U);
  EXPECT_EQ(plan.nodes[0].primitive, s.fused.primitive);
  EXPECT_EQ(plan.nodes[0].problem, to_string(s.fused.problem));
  EXPECT_EQ(plan.nodes[1].absorbed_by, plan.nodes[0].name);
  EXPECT_EQ(plan.nodes[1].primitive, Primitive{});
  EXPECT_EQ(plan.nodes[1].cost, 0);
  EXPECT_EQ(plan.nodes[1].problem, to_string(*s.sample.graph.nodes[1].problem));
}

TEST(MakePlan, WantsEveryMissingCostOnceAndSorted) {
  ConvRelu s = conv_relu();
  s.sample.costs.costs.erase(key_of(s.relu));
  s.sample.costs.costs.erase(key_of(s.fused));
  s.sample.costs.costs.erase(key_of(s.sample.transforms[0]));
  s.sample.transforms.push_back(s.sample.transforms[0]);
  const PlanResult result = plan_of(s.sample);
  EXPECT_EQ(result.plan, Plan{});
  std::vector<CostKey> expected = {key_of(s.relu), key_of(s.fused), key_of(s.sample.transforms[0])};
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(result.wanted, expected);
  EXPECT_EQ(local_plan_of(s.sample).wanted, expected);
}

TEST(MakePlan, WantsNoCostOfWhatIsNotAllowed) {
  ConvRelu s = conv_relu();
  s.sample.costs.costs = {{key_of(s.conv), {1000}}, {key_of(s.relu), {300}}};
  PlanOptions nchw;
  nchw.layouts = {Layout::kNchw};
  const PlanResult result = plan_of(s.sample, nchw);
  EXPECT_TRUE(result.wanted.empty());
  EXPECT_EQ(result.plan.cost, 1300);
}

TEST(MakePlan, WantsTheBoundsThatItsPlanRestsOn) {
  ConvRelu s = conv_relu();
  s.sample.costs.costs[key_of(s.conv)].source = CostSource::kBound;  // not in the best plan
  s.sample.costs.costs[key_of(s.fused)].source = CostSource::kBound;
  for (const Candidate& t : s.sample.transforms) {
    s.sample.costs.costs[key_of(t)].source = CostSource::kBound;
  }
  const PlanResult result = plan_of(s.sample);
  EXPECT_EQ(result.plan.cost, 900);
  EXPECT_EQ(result.plan.nodes[0].cost_source, CostSource::kBound);
  ASSERT_EQ(result.wanted.size(), 3U);
  EXPECT_EQ(result.wanted[0], key_of(s.fused));
  EXPECT_TRUE(std::is_sorted(result.wanted.begin(), result.wanted.end()));
}

TEST(MakePlan, NamesTheNodeThatHasNoAllowedCandidate) {
  const ConvRelu s = conv_relu();
  PlanOptions none;
  none.allow = [](const Candidate& c) { return c.covers[0] != 0; };
  try {
    plan_of(s.sample, none);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "TA2301 conv_00000: no candidate is allowed; supported: test.fused, test.plain");
  }
}

TEST(MakePlan, NamesTheValueThatNoTransformCanMatch) {
  ConvRelu s = conv_relu();
  s.sample.transforms.clear();
  PlanOptions nhwc_only;
  nhwc_only.allow = [&](const Candidate& c) { return c.covers[0] == 1 || c == s.conv_nhwc; };
  try {
    plan_of(s.sample, nhwc_only);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("no transform takes value v00000 from nchw to nhwc as conv_00000 reads it"),
              std::string::npos)
        << error.what();
  }
}

TEST(MakePlan, RefusesChainsThatExcludeEachOther) {
  FlowBuilder flow;
  const int src = flow.input(8);
  flow.output(flow.add(flow.conv(src, 8), flow.conv(src, 8)));
  Sample sample{flow.graph(), {}, {}, {}};
  const auto in_nchw = [&](const std::vector<int>& covers) {
    return std::vector{candidate(sample.graph, covers, "test.a", Layout::kNchw, Layout::kNchw)};
  };
  sample.candidates.by_anchor = {in_nchw({0, 2}), in_nchw({1, 2}), in_nchw({2})};
  add_transforms_and_costs(sample, [] { return 1; });
  EXPECT_THROW(plan_of(sample), Error);
}

TEST(MakePlan, AsksAboutEachCandidateOnce) {
  const ConvRelu s = conv_relu();
  int calls = 0;
  PlanOptions counting;
  counting.allow = [&](const Candidate&) { return ++calls > 0; };
  plan_of(s.sample, counting);
  EXPECT_EQ(calls, 4);
  local_plan_of(s.sample, counting);
  EXPECT_EQ(calls, 8);
}

TEST(MakePlan, ObeysAllowOnRandomDataFlows) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const Sample sample = random_sample(random);
    PlanOptions options;
    options.allow = [](const Candidate& c) { return c.primitive.name != "test.a"; };
    expect_optimal(sample, plan_of(sample, options).plan, least_cost(sample, options.allow));
    if (HasFailure()) return;
  }
}

TEST(MakePlan, KeepsToTheLayoutsWhereNodesCan) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 400; ++i) {
    const Sample sample = random_sample(random);
    PlanOptions options;
    options.layouts = {kAllLayouts[i % kAllLayouts.size()]};
    const auto is_border = [&](int value, Layout layout) {
      const auto& inputs = sample.graph.inputs;
      for (std::size_t n = 0; n < inputs.size(); ++n) {
        if (inputs[n] == value) return sample.graph.input_layouts[n] == layout;
      }
      return false;
    };
    const auto is_inside = [&](const Candidate& c) {
      if (c.primitive.dst != options.layouts[0]) return false;
      if (c.primitive.src == options.layouts[0]) return true;
      const std::size_t residuals = has(epilogue_of(c.problem), PostOp::kAdd) ? 1 : 0;
      return std::all_of(c.inputs.begin(), c.inputs.end() - residuals,
                         [&](int value) { return is_border(value, c.primitive.src); });
    };
    const Usable usable = [&](const Candidate& c) {
      const auto& list = sample.candidates.by_anchor[c.covers[0]];
      const bool can = std::any_of(list.begin(), list.end(), [&](const Candidate& other) {
        return other.covers.size() == 1 && is_inside(other);
      });
      return !can || is_inside(c);
    };
    // With a dense set of transforms no value needs a foreign layout on its way.
    const Plan plan = plan_of(sample, options).plan;
    std::string why;
    EXPECT_EQ(replay(sample, plan, why), plan.cost) << why;
    EXPECT_GE(plan.cost, least_cost(sample, usable).value());
    for (const PlanNode& node : plan.nodes) {
      if (!node.absorbed_by.empty()) continue;
      const auto it = std::find_if(sample.graph.nodes.begin(), sample.graph.nodes.end(),
                                   [&](const Node& n) { return n.name == node.name; });
      const auto& list = sample.candidates.by_anchor[it - sample.graph.nodes.begin()];
      const bool can = std::any_of(list.begin(), list.end(), [&](const Candidate& c) {
        return c.covers.size() == 1 && is_inside(c);
      });
      EXPECT_TRUE(!can || node.primitive.dst == options.layouts[0]);
    }
    if (HasFailure()) return;
  }
}

TEST(MakePlan, NeverChangesTheLayoutOfAValueThatItCannotName) {
  for (const bool is_known : {true, false}) {
    ConvRelu s = conv_relu();
    if (!is_known) s.sample.graph.values[0].dtype.reset();
    const Plan plan = plan_of(s.sample).plan;
    EXPECT_EQ(plan.nodes[0].primitive.src, is_known ? Layout::kNChw16c : Layout::kNchw);
  }
}

TEST(MakePlan, TakesAnInputOfUnknownTypeAsItIs) {
  FlowBuilder flow;
  const int src = flow.input(8, Layout::kNhwc);
  flow.output(flow.opaque({src}, 8));
  Sample sample{flow.graph(), {{{}}, {{}}}, {}, {}};
  sample.graph.values[src].dtype.reset();
  EXPECT_EQ(plan_of(sample).plan.cost, 0);
}

TEST(MakePlan, PaysForBordersThatNoNodeChooses) {
  FlowBuilder flow;
  const int src = flow.input(8, Layout::kNhwc);
  flow.output(flow.opaque({src}, 8));
  Sample sample{flow.graph(), {{{}}, {{}}}, {}, {}};
  add_transforms_and_costs(sample, [] { return 5; });
  const Plan plan = plan_of(sample).plan;
  EXPECT_EQ(plan.cost, 5);
  EXPECT_EQ(plan.transforms.size(), 1U);
}

TEST(MakePlan, PaysForNoLayoutChangeBeforeAQueryOfTheShape) {
  for (const bool reads_shape_only : {true, false}) {
    FlowBuilder flow;
    const int src = flow.input(8, Layout::kNhwc);
    flow.ask_shape(src);
    Sample sample{flow.graph(), {{{}}, {{}}}, {}, {}};
    sample.graph.nodes[0].reads_shape_only = reads_shape_only;
    add_transforms_and_costs(sample, [] { return 5; });
    EXPECT_EQ(plan_of(sample).plan.cost, reads_shape_only ? 0 : 5);
  }
}

TEST(MakePlan, PaysForNoLayoutChangeBeforeAViewOfNhwc) {
  for (const Layout reads : {Layout::kNhwc, Layout::kNchw}) {
    FlowBuilder flow;
    const int src = flow.input(8, Layout::kNhwc);
    flow.ask_shape(src);
    Sample sample{flow.graph(), {{{}}, {{}}}, {}, {}};
    sample.graph.nodes[0].reads_shape_only = false;
    sample.graph.nodes[0].reads = reads;
    add_transforms_and_costs(sample, [] { return 5; });
    EXPECT_EQ(plan_of(sample).plan.cost, reads == Layout::kNhwc ? 0 : 5);
  }
}

TEST(MakePlan, PutsAResidualOfTheProblemItselfInTheDestinationLayout) {
  FlowBuilder flow;
  const int a = flow.input(8), b = flow.input(8);
  flow.output(flow.add(a, b));
  Sample sample{flow.graph(), {}, {}, {}};
  ConvProblem conv;
  conv.c = conv.k = 8;
  conv.h = conv.w = 4;
  conv.epilogue = {PostOp::kAdd};
  sample.graph.nodes[0].problem = conv;
  const Candidate fused{{0}, conv, {"test.a", Layout::kNhwc, Layout::kNchw, 0}, {a, b}};
  sample.candidates = {{{fused}}, {{}}};
  add_transforms_and_costs(sample, [] { return 5; });
  const Plan plan = plan_of(sample).plan;
  ASSERT_EQ(plan.transforms.size(), 1U);
  EXPECT_EQ(plan.transforms[0].value, sample.graph.values[a].name);
}

TEST(MakePlan, DoesNotDependOnTheOrderOfItsArguments) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 300; ++i) {
    RandomSizes sizes;
    sizes.max_cost = 2;
    const Sample sample = random_sample(random, sizes);
    Sample shuffled = sample;
    for (auto& list : shuffled.candidates.by_anchor) std::shuffle(list.begin(), list.end(), random);
    std::shuffle(shuffled.transforms.begin(), shuffled.transforms.end(), random);
    PlanOptions options;
    options.with_regrets = true;
    EXPECT_EQ(plan_of(sample, options).plan, plan_of(shuffled, options).plan) << describe(sample);
    if (HasFailure()) return;
  }
}

TEST(MakePlan, DoesNotDependOnTheOrderOfNodesAndValues) {
  std::mt19937_64 random(13);
  int moved = 0;
  for (int i = 0; i < 300; ++i) {
    RandomSizes sizes;
    sizes.nodes = 9;
    sizes.max_cost = 1;
    const Sample sample = random_sample(random, sizes);
    const Sample other = reordered(sample, random);
    moved += sample.graph.nodes[0].name != other.graph.nodes[0].name;
    const Plan a = plan_of(sample).plan, b = plan_of(other).plan;
    for (const PlanNode& node : a.nodes) EXPECT_EQ(node, node_named(b, node.name));
    EXPECT_TRUE(std::is_permutation(a.transforms.begin(), a.transforms.end(), b.transforms.begin(),
                                    b.transforms.end()));
    if (HasFailure()) return;
  }
  EXPECT_GT(moved, 50);
}

TEST(MakeLocalPlan, TakesEachConvolutionsFastestAndIsNeverCheaper) {
  std::mt19937_64 random(10);
  int dearer = 0;
  for (int i = 0; i < 400; ++i) {
    RandomSizes sizes;
    sizes.nodes = 5;
    sizes.max_cost = 100;
    const Sample sample = random_sample(random, sizes);
    const std::vector<std::vector<int>> readers = readers_of(sample.graph);
    // With the activation behind it, in the same call or in another.
    const auto cost = [&](const Candidate& c) {
      const Ticks own = find_cost(sample.costs, key_of(c))->ticks;
      const std::vector<int>& next = readers[sample.graph.nodes[c.covers.back()].outputs[0]];
      if (c.covers.size() > 1 || next.size() != 1) return own;
      const auto& problem = sample.graph.nodes[next[0]].problem;
      if (!problem || !is_lone_activation(*problem)) return own;
      std::optional<Ticks> least;
      for (const Candidate& other : sample.candidates.by_anchor[next[0]]) {
        if (other.covers.size() > 1 || input_layout(other) != result_layout(c)) continue;
        const Ticks ticks = find_cost(sample.costs, key_of(other))->ticks;
        least = std::min(least.value_or(ticks), ticks);
      }
      return own + least.value_or(0);
    };
    const auto fastest = [&](int node) {
      const Candidate* best = nullptr;
      const auto rank = [&](const Candidate& c) {
        return std::tuple(cost(c), c.primitive.name, c.primitive.src, c.primitive.dst);
      };
      for (const Candidate& c : sample.candidates.by_anchor[node]) {
        const bool is_alone = std::all_of(c.covers.begin() + 1, c.covers.end(), [&](int covered) {
          return is_lone_activation(*sample.graph.nodes[covered].problem);
        });
        if (is_alone && (best == nullptr || rank(c) < rank(*best))) best = &c;
      }
      return best->primitive;
    };
    const Usable is_local = [&](const Candidate& c) {
      const Node& anchor = sample.graph.nodes[c.covers[0]];
      return anchor.kind != "conv" || c.primitive == fastest(c.covers[0]);
    };
    const Plan local = local_plan_of(sample).plan;
    expect_optimal(sample, local, least_cost(sample, is_local));
    EXPECT_GE(local.cost, plan_of(sample).plan.cost);
    dearer += local.cost > plan_of(sample).plan.cost;
    if (HasFailure()) return;
  }
  EXPECT_GT(dearer, 50);
}

}  // namespace torchalgo::planner_test
