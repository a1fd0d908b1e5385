// SPDX-License-Identifier: BSD-3-Clause
#include "planner/lower.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/graph_text.h"
#include "ir/view.h"
#include "planner/training_graph.h"
#include "planner/written_plan.h"

namespace torchalgo {
namespace {

constexpr const char* kConv = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1";
constexpr const char* kRelu = "relu_f32_n1c16h8w8";
constexpr const char* kAdd = "add_f32_n1c16h8w8";
constexpr Layout kPlain = Layout::kNchw, kImage = Layout::kNhwc, kBlocked = Layout::kNChw16c;

// A graph of values of one shape: each line of `nodes` is name, kind, inputs, outputs, problem.
Graph graph_of(int values, const std::string& nodes, const std::vector<int>& outputs) {
  std::string text = "torchalgo graph 1\n";
  for (int v = 0; v < values; ++v) text += fmt::format("value\tv{}\t1,16,8,8\tf32\n", v);
  text += nodes + "input\t0\tnchw\n";
  for (const int output : outputs) text += fmt::format("output\t{}\n", output);
  return parse_graph(text);
}

std::string node(const std::string& name, const std::string& inputs, int output,
                 const std::string& problem) {
  return fmt::format("node\t{}\taten::op\t{}\t{}\t{}\t\n", name, inputs, output, problem);
}

PlanTransform change(const std::string& value, Layout from, Layout to) {
  return {value,
          "",
          fmt::format("transform_f32_n1c16h8w8_{}_{}", to_string(from), to_string(to)),
          {"layout.transform", from, to},
          0};
}

Plan plan_for(const Graph& graph, std::vector<PlanNode> nodes,
              std::vector<PlanTransform> changes = {}) {
  Plan plan;
  plan.structure_hash = structure_hash(graph);
  plan.nodes = std::move(nodes);
  plan.transforms = std::move(changes);
  return plan;
}

// Each step with the tensors that it reads and writes: "conv v1:nhwc = v0:nhwc".
std::vector<std::string> lines(const Graph& graph, const Schedule& schedule) {
  const auto form = [&](int slot) {
    const Schedule::Slot& of = schedule.slots.at(slot);
    return fmt::format("{}:{}", graph.values[of.value].name, to_string(of.layout));
  };
  std::vector<std::string> found;
  for (const Schedule::Step& step : schedule.steps) {
    std::vector<std::string> src, dst;
    for (const int slot : step.src) src.push_back(form(slot));
    if (step.residual) src.push_back("+" + form(*step.residual));
    for (const int slot : step.dst) dst.push_back(form(slot));
    found.push_back(
        fmt::format("{} {} = {}", step.layer, fmt::join(dst, " "), fmt::join(src, " ")));
  }
  return found;
}

using Lines = std::vector<std::string>;

std::string error_of(const Graph& graph, const Plan& plan) {
  try {
    static_cast<void>(lower(graph, plan));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Lower, MakesOneStepOfAChainAndSaysWhatIsReadLast) {
  const Graph graph = graph_of(
      4, node("conv", "0", 1, kConv) + node("add", "0,1", 2, kAdd) + node("relu", "2", 3, kRelu),
      {3});
  const Plan plan =
      plan_for(graph, {chosen("conv", std::string(kConv) + "+add+relu", "cpu.direct"),
                       absorbed("add", kAdd, "conv"), absorbed("relu", kRelu, "conv")});
  const Schedule schedule = lower(graph, plan);
  EXPECT_EQ(lines(graph, schedule), (Lines{"conv v3:nchw = v0:nchw +v0:nchw"}));
  EXPECT_EQ(schedule.steps[0].covers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(schedule.forward_steps, 1);
  EXPECT_EQ(schedule.slots, (std::vector<Schedule::Slot>{{0, kPlain, 4096, -1, 0, -1, {}},
                                                         {3, kPlain, 4096, 0, 1, -1, {}}}));
  EXPECT_EQ(schedule.inputs, std::vector<int>{0});
  EXPECT_EQ(schedule.outputs, std::vector<int>{1});
}

TEST(Lower, ChangesALayoutOnceBehindItsWriter) {
  const Graph graph =
      graph_of(4, node("a", "0", 1, kConv) + node("relu", "0", 2, kRelu) + node("b", "1", 3, kConv),
               {2, 3, 1});
  const Plan plan = plan_for(
      graph,
      {chosen("a", kConv, "cpu.direct", kBlocked, kBlocked), chosen("relu", kRelu, "aten.relu"),
       chosen("b", kConv, "cpu.direct", kImage, kImage)},
      {change("v0", kPlain, kImage), change("v0", kImage, kBlocked), change("v1", kBlocked, kImage),
       change("v1", kImage, kPlain), change("v3", kImage, kPlain)});
  EXPECT_EQ(lines(graph, lower(graph, plan)),
            (Lines{"v0 v0:nhwc = v0:nchw", "v0 v0:nChw16c = v0:nhwc", "a v1:nChw16c = v0:nChw16c",
                   "v1 v1:nhwc = v1:nChw16c", "v1 v1:nchw = v1:nhwc", "relu v2:nchw = v0:nchw",
                   "b v3:nhwc = v1:nhwc", "v3 v3:nchw = v3:nhwc"}));
  EXPECT_EQ(lower(graph, plan).slots[0].last_use, 5) << "the change and relu read it";
}

TEST(Lower, RefusesAPlanThatDoesNotMakeWhatIsRead) {
  const Graph graph = graph_of(3, node("a", "0", 1, kConv) + node("relu", "1", 2, kRelu), {2});
  const PlanNode a = chosen("a", kConv, "cpu.direct", kPlain, kImage);
  const PlanNode relu = chosen("relu", kRelu, "aten.relu");
  EXPECT_EQ(error_of(graph, plan_for(graph, {a, relu})),
            "TA2202 plan: relu reads v1 in nchw, which no entry of the plan makes");
  EXPECT_EQ(error_of(graph, plan_for(graph, {a, relu}, {change("v1", kImage, kPlain)})), "");
  EXPECT_EQ(error_of(graph, plan_for(graph, {a, relu}, {change("v1", kBlocked, kPlain)})),
            "TA2202 plan: transform_f32_n1c16h8w8_nChw16c_nchw reads v1 in nChw16c, which no entry "
            "of the plan makes");
  const PlanNode last = chosen("relu", kRelu, "aten.relu", kImage, kImage);
  EXPECT_EQ(error_of(graph, plan_for(graph, {a, last})),
            "TA2202 plan: the caller reads v2 in nchw, which no entry of the plan makes");
}

TEST(Lower, LeavesOpaqueNodesTheirLayouts) {
  Graph graph = graph_of(3, node("a", "0", 1, kConv) + node("permute", "1", 2, "-"), {2});
  graph.nodes[1].reads = kImage;
  const PlanNode a = chosen("a", kConv, "cpu.direct", kPlain, kImage);
  Plan plan = plan_for(graph, {a});
  const Schedule schedule = lower(graph, plan);
  EXPECT_EQ(lines(graph, schedule), (Lines{"a v1:nhwc = v0:nchw", "permute v2:nchw = v1:nhwc"}));
  EXPECT_FALSE(schedule.steps[1].problem.has_value());
  // Plans of an older version have no such layouts.
  plan.structure_version = kFirstWithLayouts - 1;
  plan.structure_hash = structure_hash(graph, plan.structure_version);
  EXPECT_NE(error_of(graph, plan).find("permute reads v1 in nchw"), std::string::npos);
  plan.transforms = {change("v1", kImage, kPlain)};
  EXPECT_EQ(lines(graph, lower(graph, plan)).back(), "permute v2:nchw = v1:nchw");
}

TEST(Lower, AsksForAShapeInAnyLayout) {
  const Graph graph = graph_of(
      4, node("a", "0", 1, kConv) + node("size", "1", 2, "shape") + node("relu", "1", 3, kRelu),
      {3});
  const PlanNode a = chosen("a", kConv, "cpu.direct", kPlain, kBlocked);
  const auto asked = [&](Layout layout, std::vector<PlanTransform> changes) {
    changes.push_back(change("v3", layout, kPlain));
    if (layout == kPlain) changes.pop_back();
    const Plan plan =
        plan_for(graph, {a, chosen("relu", kRelu, "cpu.relu", layout, layout)}, changes);
    for (const std::string& line : lines(graph, lower(graph, plan))) {
      if (line.starts_with("size")) return line;
    }
    return std::string();
  };
  EXPECT_EQ(asked(kBlocked, {}), "size v2:nchw = v1:nChw16c");
  EXPECT_EQ(asked(kPlain, {change("v1", kBlocked, kPlain)}), "size v2:nchw = v1:nchw");
  const Layout typed = *parse_layout("nhwc.bf16");
  EXPECT_EQ(asked(typed, {change("v1", kBlocked, typed)}), "size v2:nchw = v1:nhwc.bf16");
}

TEST(Lower, PutsPartsOfAConcatenationIntoItsBuffer) {
  constexpr const char* kWide = "fwd_f32_n1c32h8w8_k32r3s3_st1x1_pad1x1_dil1x1_g1";
  std::string text = "torchalgo graph 1\n";
  for (int v = 0; v < 3; ++v) text += fmt::format("value\tv{}\t1,32,8,8\tf32\n", v);
  const Graph graph = parse_graph(
      text + "value\tv3\t1,64,8,8\tf32\n" + node("a", "0", 1, kWide) + node("b", "0", 2, kWide) +
      node("cat", "1,2", 3, "concat_f32_n1c32x32h8w8") + "input\t0\tnchw\noutput\t3\n");
  Plan plan = plan_for(
      graph,
      {chosen("a", kWide, "cpu.direct", kPlain, kBlocked),
       chosen("b", kWide, "cpu.direct", kPlain, kBlocked),
       chosen("cat", "concat_f32_n1c32x32h8w8", std::string(kViewConcat), kBlocked, kBlocked)},
      {{"v3",
        "",
        "transform_f32_n1c64h8w8_nChw16c_nchw",
        {"layout.transform", kBlocked, kPlain},
        0}});
  const Schedule schedule = lower(graph, plan);
  EXPECT_EQ(schedule.buffers, (std::vector<std::vector<std::int64_t>>{{1, 4, 8, 8, 16}}));
  EXPECT_EQ(schedule.slots[schedule.steps[0].dst[0]].part, (BufferPart{0, 0}));
  EXPECT_EQ(schedule.slots[schedule.steps[1].dst[0]].part, (BufferPart{0, 32}));
  EXPECT_EQ(schedule.steps[2].buffer, 0);
  plan.nodes[2].primitive.name = "cpu.concat";
  EXPECT_TRUE(lower(graph, plan).buffers.empty());
  EXPECT_FALSE(lower(graph, plan).steps[2].buffer.has_value());
}

// The gradients of two convolutions read what the forward pass makes.
TEST(Lower, PlacesAChangeForGradientsWhereTheyNeedIt) {
  const Graph forward = graph_of(3, node("a", "0", 1, kConv) + node("b", "1", 2, kConv), {2});
  const Graph graph = training_graph(forward, {}, {});
  std::vector<PlanNode> nodes;
  for (const Node& each : graph.nodes) {
    const bool is_b_filter = each.kind == "bwd_filter" && each.name.starts_with("b.");
    const bool is_b = each.name == "b";
    const Layout src = is_b_filter ? kBlocked : is_b ? kImage : kPlain;
    nodes.push_back(chosen(each.name, to_string(*each.problem), "any", src, kPlain));
  }
  const std::vector<PlanTransform> changes = {change("v1", kPlain, kImage),
                                              change("v1", kPlain, kBlocked)};
  const Schedule schedule =
      lower(graph, plan_for(graph, nodes, changes), static_cast<int>(forward.nodes.size()));
  const Lines found = lines(graph, schedule);
  ASSERT_EQ(schedule.forward_steps, 3);
  EXPECT_EQ((Lines{found.begin(), found.begin() + 3}),
            (Lines{"a v1:nchw = v0:nchw", "v1 v1:nhwc = v1:nchw", "b v2:nchw = v1:nhwc"}));
  EXPECT_EQ(std::count(found.begin(), found.end(), "v1 v1:nChw16c = v1:nchw"), 1);
  // Without gradients, each change follows its writer.
  EXPECT_EQ(lines(graph, lower(graph, plan_for(graph, nodes, changes)))[2],
            "v1 v1:nChw16c = v1:nchw");
  // The caller gets the gradient of the weights as its primitive writes it, without a change.
  const int filter = schedule.outputs[1];
  EXPECT_GE(schedule.slots[filter].writer, schedule.forward_steps);
}

}  // namespace
}  // namespace torchalgo
