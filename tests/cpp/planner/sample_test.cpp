// SPDX-License-Identifier: BSD-3-Clause
#include "planner/sample.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "planner/training_graph.h"

namespace torchalgo::planner_test {
namespace {

constexpr std::int64_t kSize = 4;

int pick(std::mt19937_64& random, int count) { return static_cast<int>(random() % count); }

Layout pick_layout(std::mt19937_64& random) { return kAllLayouts[random() % kAllLayouts.size()]; }

bool is_kind(const Graph& graph, int node, const std::string& kind) {
  return graph.nodes[node].kind == kind;
}

// The node that alone may take the result of `node` in registers, or -1.
int follower(const Graph& graph, int node) {
  const int link = graph.nodes[node].outputs[0];
  if (std::count(graph.outputs.begin(), graph.outputs.end(), link) > 0) return -1;
  const std::vector<int> readers = readers_of(graph)[link];
  if (readers.size() != 1) return -1;
  const bool may_follow = is_kind(graph, readers[0], "add") || is_kind(graph, readers[0], "relu");
  return may_follow ? readers[0] : -1;
}

int random_node(std::mt19937_64& random, FlowBuilder& flow, const std::vector<int>& values) {
  // Late values are preferred, so that graphs are deep.
  const auto any = [&] {
    const int count = static_cast<int>(values.size());
    return values[count - 1 - std::min(pick(random, count), pick(random, count))];
  };
  const int a = pick(random, 2) == 0 ? values.back() : any();
  switch (pick(random, 8)) {
    case 0:
    case 1:
      return flow.relu(a);
    case 2:
    case 3:
      for (int attempt = 0; attempt < 8; ++attempt) {
        const int b = any();
        if (flow.channels(a) == flow.channels(b)) return flow.add(a, b);
      }
      return flow.conv(a, 8);
    case 4:
      return flow.concat({a, any()});
    case 5:
      return pick(random, 2) == 0 ? flow.opaque({a}, 8) : flow.conv(a, 8);
    default:
      return flow.conv(a, pick(random, 4) == 0 ? 16 : 8);
  }
}

// What kernels fuse; now and then somebody else reads from within.
void add_residual_block(std::mt19937_64& random, FlowBuilder& flow, std::vector<int>& values) {
  const int src = values[pick(random, static_cast<int>(values.size()))];
  const int residual = values.back();
  const int conv = flow.conv(src, flow.channels(residual));
  const int sum = pick(random, 2) == 0 ? flow.add(conv, residual) : flow.add(residual, conv);
  if (pick(random, 6) == 0) values.push_back(pick(random, 2) == 0 ? conv : sum);
  values.push_back(flow.relu(sum));
}

Graph random_graph(std::mt19937_64& random, int nodes) {
  FlowBuilder flow;
  std::vector<int> values;
  const int inputs = 1 + pick(random, 2);
  for (int i = 0; i < inputs; ++i) {
    values.push_back(flow.input(8, pick(random, 2) == 0 ? Layout::kNchw : Layout::kNhwc));
  }
  while (static_cast<int>(flow.graph().nodes.size()) < nodes) {
    const bool has_room = static_cast<int>(flow.graph().nodes.size()) + 3 <= nodes;
    if (has_room && pick(random, 4) == 0) {
      add_residual_block(random, flow, values);
    } else if (pick(random, 8) == 0) {
      flow.ask_shape(values[pick(random, static_cast<int>(values.size()))]);
    } else {
      values.push_back(random_node(random, flow, values));
    }
  }
  flow.output(values.back());
  while (pick(random, 3) == 0) flow.output(values[pick(random, static_cast<int>(values.size()))]);
  return flow.graph();
}

void add_candidates(std::mt19937_64& random, int extra, Sample& sample) {
  const Graph& graph = sample.graph;
  sample.candidates.by_anchor.resize(graph.nodes.size());
  sample.candidates.refusals.resize(graph.nodes.size());
  for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
    if (!graph.nodes[n].problem) continue;
    std::vector<Candidate>& list = sample.candidates.by_anchor[n];
    list.push_back(candidate(graph, {n}, "test.plain", Layout::kNchw, Layout::kNchw));
    const std::vector<std::vector<int>> chains = chains_from(graph, n);
    for (int i = pick(random, extra + 1); i > 0; --i) {
      const std::string name = pick(random, 2) == 0 ? "test.a" : "test.b";
      const int length = std::max(pick(random, static_cast<int>(chains.size())),
                                  pick(random, static_cast<int>(chains.size())));
      const std::vector<int>& covers = chains[length];
      list.push_back(candidate(graph, covers, name, pick_layout(random), pick_layout(random)));
    }
  }
}

}  // namespace

int FlowBuilder::new_value(std::int64_t channels, int producer) {
  const int index = static_cast<int>(graph_.values.size());
  graph_.values.push_back({fmt::format("{}v{:05}", prefix_, index),
                           {1, channels, kSize, kSize},
                           DType::kF32,
                           producer});
  return index;
}

int FlowBuilder::new_node(const std::string& kind, const std::vector<int>& inputs,
                          std::optional<Problem> problem, std::int64_t channels) {
  const int index = static_cast<int>(graph_.nodes.size());
  const int result = new_value(channels, index);
  graph_.nodes.push_back({fmt::format("{}{}_{:05}", prefix_, kind, index),
                          kind,
                          inputs,
                          {result},
                          std::move(problem),
                          ""});
  return result;
}

int FlowBuilder::input(std::int64_t channels, Layout layout) {
  graph_.inputs.push_back(new_value(channels, -1));
  graph_.input_layouts.push_back(layout);
  return graph_.inputs.back();
}

int FlowBuilder::conv(int src, std::int64_t k) {
  ConvProblem conv;
  conv.c = channels(src);
  conv.h = conv.w = kSize;
  conv.k = k;
  return new_node("conv", {src}, conv, k);
}

int FlowBuilder::add(int a, int b) {
  EltwiseProblem add;
  add.kind = EltwiseKind::kAdd;
  add.c = channels(a);
  add.h = add.w = kSize;
  return new_node("add", {a, b}, add, add.c);
}

int FlowBuilder::relu(int src) {
  EltwiseProblem relu;
  relu.c = channels(src);
  relu.h = relu.w = kSize;
  relu.epilogue = {PostOp::kRelu};
  return new_node("relu", {src}, relu, relu.c);
}

int FlowBuilder::concat(const std::vector<int>& parts) {
  ConcatProblem concat;
  concat.h = concat.w = kSize;
  std::int64_t sum = 0;
  for (const int part : parts) {
    concat.c.push_back(channels(part));
    sum += channels(part);
  }
  return new_node("concat", parts, concat, sum);
}

int FlowBuilder::opaque(const std::vector<int>& sources, std::int64_t channels) {
  return new_node("opaque", sources, std::nullopt, channels);
}

void FlowBuilder::ask_shape(int src) {
  const auto index = graph_.nodes.size();
  graph_.nodes.push_back(
      {fmt::format("{}size_{:05}", prefix_, index), "size", {src}, {}, std::nullopt, "", true});
}

std::vector<std::vector<int>> chains_from(const Graph& graph, int anchor) {
  std::vector<std::vector<int>> chains = {{anchor}};
  const bool is_conv = is_kind(graph, anchor, "conv");
  if (!is_conv && !is_kind(graph, anchor, "add")) return chains;
  bool has_add = !is_conv;
  for (int next = follower(graph, anchor); next >= 0; next = follower(graph, next)) {
    const bool is_add = is_kind(graph, next, "add");
    if (is_add && has_add) break;
    has_add |= is_add;
    chains.push_back(chains.back());
    chains.back().push_back(next);
    if (!is_add) break;
  }
  return chains;
}

Candidate candidate(const Graph& graph, const std::vector<int>& covers, const std::string& name,
                    Layout src, Layout dst) {
  const Node& anchor = graph.nodes[covers[0]];
  std::vector<int> inputs = anchor.inputs;
  Epilogue epilogue = epilogue_of(*anchor.problem);
  for (std::size_t i = 1; i < covers.size(); ++i) {
    const Node& node = graph.nodes[covers[i]];
    epilogue.push_back(node.kind == "add" ? PostOp::kAdd : PostOp::kRelu);
    const int link = graph.nodes[covers[i - 1]].outputs[0];
    std::copy_if(node.inputs.begin(), node.inputs.end(), std::back_inserter(inputs),
                 [&](int value) { return value != link; });
  }
  const Problem problem =
      covers.size() > 1 ? with_epilogue(*anchor.problem, epilogue) : *anchor.problem;
  return {covers, problem, {name, src, dst, 0}, inputs};
}

void add_transforms_and_costs(Sample& sample, const std::function<Ticks()>& draw,
                              const std::function<bool(Layout, Layout)>& has) {
  sample.transforms = transform_candidates(
      sample.graph, sample.candidates, [&](const Problem& problem) -> std::vector<Primitive> {
        const auto& change = std::get<TransformProblem>(problem);
        if (has && !has(change.from, change.to)) return {};
        return {{"test.move", change.from, change.to, 0}, {"test.copy", change.from, change.to, 0}};
      });
  const auto price = [&](const Candidate& c) {
    sample.costs.costs.try_emplace(cost_key(c.problem, c.primitive), Cost{draw()});
  };
  for (const auto& list : sample.candidates.by_anchor)
    std::for_each(list.begin(), list.end(), price);
  std::for_each(sample.transforms.begin(), sample.transforms.end(), price);
}

static Sample random_sample_of(std::mt19937_64& random, const RandomSizes& sizes, Graph graph) {
  Sample sample;
  sample.graph = std::move(graph);
  add_candidates(random, sizes.extra_candidates, sample);
  const bool is_sparse = pick(random, 3) == 0;  // changes between other layouts go through nchw
  add_transforms_and_costs(
      sample, [&] { return static_cast<Ticks>(random() % (sizes.max_cost + 1)); },
      [&](Layout from, Layout to) {
        return !is_sparse || from == Layout::kNchw || to == Layout::kNchw;
      });
  return sample;
}

Sample random_sample(std::mt19937_64& random, const RandomSizes& sizes) {
  return random_sample_of(random, sizes, random_graph(random, sizes.nodes));
}

Sample random_training_sample(std::mt19937_64& random, const RandomSizes& sizes) {
  return random_sample_of(random, sizes, training_graph(random_graph(random, sizes.nodes)));
}

std::string describe(const Sample& sample) {
  std::string text;
  const Graph& graph = sample.graph;
  text += fmt::format("inputs {} outputs {}\n", fmt::join(graph.inputs, ","),
                      fmt::join(graph.outputs, ","));
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    text += fmt::format("{} ({}) -> {}\n", node.name, fmt::join(node.inputs, ","),
                        fmt::join(node.outputs, ","));
    for (const Candidate& c : sample.candidates.by_anchor[n]) {
      const auto cost = find_cost(sample.costs, cost_key(c.problem, c.primitive));
      text += fmt::format("    [{}] {} {}\n", fmt::join(c.covers, ","), to_string(c.primitive),
                          cost ? cost->ticks : -1);
    }
  }
  for (const Candidate& c : sample.transforms) {
    const auto cost = find_cost(sample.costs, cost_key(c.problem, c.primitive));
    text += fmt::format("{} {}\n", to_string(c.problem), cost ? cost->ticks : -1);
  }
  return text;
}

TEST(RandomSample, CoversWhatThePlannerMeets) {
  std::mt19937_64 random(1);
  int fused = 0, opaque = 0, asked = 0, shared = 0, outputs = 0, twice = 0;
  for (int i = 0; i < 300; ++i) {
    const Sample sample = random_sample(random);
    check_graph(sample.graph);
    outputs += sample.graph.outputs.size() > 1;
    for (const auto& readers : readers_of(sample.graph)) {
      const bool is_twice = readers.size() > 1 && readers.front() == readers.back();
      twice += is_twice;
      shared += readers.size() > 1 && !is_twice;
    }
    for (const Node& node : sample.graph.nodes) {
      opaque += !node.problem && !node.reads_shape_only;
      asked += node.reads_shape_only;
    }
    for (const auto& list : sample.candidates.by_anchor) {
      for (const Candidate& c : list) fused += c.covers.size() > 1;
    }
  }
  for (const int count : {fused, opaque, asked, shared, outputs, twice}) EXPECT_GT(count, 30);
}

}  // namespace torchalgo::planner_test
