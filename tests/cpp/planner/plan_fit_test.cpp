// SPDX-License-Identifier: BSD-3-Clause
#include "planner/plan_fit.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "planner/written_plan.h"

namespace torchalgo {
namespace {

constexpr const char* kConv = "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias";

// y = relu(conv(x) + x)
Graph residual_graph() {
  Graph graph;
  graph.values = {{"x", {1, 4, 8, 8}, DType::kF32, -1},
                  {"conv", {1, 4, 8, 8}, DType::kF32, 0},
                  {"add", {1, 4, 8, 8}, DType::kF32, 1},
                  {"relu", {1, 4, 8, 8}, DType::kF32, 2}};
  graph.nodes = {{"conv", "aten::conv2d", {0}, {1}, parse_problem(kConv), {}},
                 {"add", "aten::add", {0, 1}, {2}, parse_problem("add_f32_n1c4h8w8"), {}},
                 {"relu", "aten::relu", {2}, {3}, parse_problem("relu_f32_n1c4h8w8"), {}}};
  graph.inputs = {0};
  graph.input_layouts = {Layout::kNchw};
  graph.outputs = {3};
  return graph;
}

Plan fused_plan(const Graph& graph) {
  Plan plan;
  plan.structure_hash = structure_hash(graph);
  plan.nodes = {chosen("conv", std::string(kConv) + "+add+relu", "cpu.direct"),
                absorbed("add", "add_f32_n1c4h8w8", "conv"),
                absorbed("relu", "relu_f32_n1c4h8w8", "conv")};
  return plan;
}

std::string error_of(const Graph& graph, const Plan& plan) {
  try {
    static_cast<void>(fit_plan(graph, plan));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(FitPlan, GivesTheResidualAndTheResultOfAChain) {
  const Graph graph = residual_graph();
  const FittedPlan fitted = fit_plan(graph, fused_plan(graph));
  EXPECT_FALSE(fitted.call_at[0].has_value());
  EXPECT_FALSE(fitted.call_at[1].has_value());
  ASSERT_TRUE(fitted.call_at[2].has_value());
  const PlannedCall& call = *fitted.call_at[2];
  EXPECT_EQ(call.name, "conv");
  EXPECT_EQ(call.covers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(call.src, std::vector<int>{0});
  EXPECT_EQ(call.residual, 0);
  EXPECT_EQ(call.dst, 3);
  EXPECT_EQ(to_string(call.problem), std::string(kConv) + "+add+relu");
}

TEST(FitPlan, KeepsCallsThatAbsorbNothingApart) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.nodes = {chosen("conv", kConv, "cpu.direct"),
                chosen("add", "add_f32_n1c4h8w8+relu", "cpu.eltwise"),
                absorbed("relu", "relu_f32_n1c4h8w8", "add")};
  const FittedPlan fitted = fit_plan(graph, plan);
  ASSERT_TRUE(fitted.call_at[0].has_value());
  EXPECT_EQ(fitted.call_at[0]->dst, 1);
  ASSERT_TRUE(fitted.call_at[2].has_value());
  EXPECT_EQ(fitted.call_at[2]->src, (std::vector<int>{0, 1}));
  EXPECT_FALSE(fitted.call_at[2]->residual.has_value());
}

TEST(FitPlan, GivesTheConvolutionsOfAChain) {
  constexpr const char* kDepthwise = "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g4+bias";
  Graph graph = residual_graph();
  graph.nodes[1] = {"depthwise", "aten::conv2d", {1}, {2}, parse_problem(kDepthwise), {}};
  Plan plan;
  plan.structure_hash = structure_hash(graph);
  const std::string chain =
      "chain_" + std::string(kConv).substr(4) + "_k4r3s3_st1x1_pad1x1_dil1x1_g4+bias+relu";
  plan.nodes = {chosen("conv", chain, "cpu.conv_chain"), absorbed("depthwise", kDepthwise, "conv"),
                absorbed("relu", "relu_f32_n1c4h8w8", "conv")};
  const FittedPlan fitted = fit_plan(graph, plan);
  ASSERT_TRUE(fitted.call_at[2].has_value());
  const PlannedCall& call = *fitted.call_at[2];
  EXPECT_EQ(call.covers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(call.src, std::vector<int>{0});
  EXPECT_FALSE(call.residual.has_value());
  EXPECT_EQ(call.dst, 3);
  EXPECT_EQ(to_string(call.problem), chain);
  plan.nodes[0].problem = kConv;
  EXPECT_NE(error_of(graph, plan).find("conv is"), std::string::npos) << error_of(graph, plan);
}

TEST(FitPlan, FitsByNameWhereTheHashHasAnOlderVersion) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.structure_hash = "00112233445566ff";
  EXPECT_NE(error_of(graph, plan).find("made for another model"), std::string::npos);
  plan.structure_version = kStructureVersion - 1;
  std::swap(plan.nodes[1], plan.nodes[2]);  // it may have listed them in another order
  const FittedPlan fitted = fit_plan(graph, plan);
  ASSERT_TRUE(fitted.call_at[2].has_value());
  EXPECT_EQ(fitted.call_at[2]->covers, (std::vector<int>{0, 1, 2}));
}

TEST(FitPlan, LeavesToPyTorchWhatWasNotKnownWhenThePlanWasMade) {
  Graph graph = residual_graph();
  graph.nodes[1].inputs = {1, 1};  // y = relu(conv(x) + conv(x))
  Graph then = graph;
  then.nodes[1].problem.reset();
  then.nodes[1].inputs = {1};
  Plan plan;
  plan.nodes = {chosen("conv", kConv, "cpu.direct"),
                chosen("relu", "relu_f32_n1c4h8w8", "cpu.eltwise")};
  plan.structure_hash = structure_hash(then);
  const FittedPlan fitted = fit_plan(graph, plan);
  EXPECT_EQ(fitted.is_planned, (std::vector<bool>{true, false, true}));
  EXPECT_FALSE(fitted.call_at[1].has_value());
  EXPECT_EQ(fitted.structure_hash, plan.structure_hash);

  plan.structure_hash = structure_hash(graph);
  EXPECT_NE(error_of(graph, plan).find("node 1 is relu in the plan"), std::string::npos)
      << error_of(graph, plan);
  plan.structure_version = kStructureVersion - 1;
  EXPECT_EQ(fit_plan(graph, plan).structure_hash, structure_hash(then));
}

TEST(FitPlan, NeverLeavesAConvolutionToPyTorch) {
  const Graph graph = residual_graph();
  Graph then = graph;
  then.nodes[0].problem.reset();
  Plan plan;
  plan.nodes = {chosen("add", "add_f32_n1c4h8w8", "cpu.eltwise"),
                chosen("relu", "relu_f32_n1c4h8w8", "cpu.eltwise")};
  plan.structure_hash = structure_hash(then);
  EXPECT_NE(error_of(graph, plan).find("made for another model"), std::string::npos);
}

TEST(FitPlan, NamesTheNodeThatAnOlderPlanOrTheModelLacks) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.structure_version = kStructureVersion - 1;
  plan.nodes[1].name = "sum";
  EXPECT_NE(error_of(graph, plan).find("the model has no sum; make a plan"), std::string::npos)
      << error_of(graph, plan);
  plan = fused_plan(graph);
  plan.structure_version = kStructureVersion - 1;
  plan.nodes.erase(plan.nodes.begin());
  EXPECT_NE(error_of(graph, plan).find("the plan has no conv; make a plan"), std::string::npos)
      << error_of(graph, plan);
  plan = fused_plan(graph);
  plan.structure_version = kStructureVersion - 1;
  plan.nodes[0].problem = "fwd_f32_n1c4h8w8_k4r1s1_st1x1_pad0x0_dil1x1_g1+bias+add+relu";
  EXPECT_NE(error_of(graph, plan).find("conv is"), std::string::npos) << error_of(graph, plan);
}

TEST(FitPlan, RefusesAHashOfANewerVersion) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.structure_version = kStructureVersion + 1;
  EXPECT_NE(error_of(graph, plan).find("update torchalgo"), std::string::npos)
      << error_of(graph, plan);
}

TEST(FitPlan, RefusesAProblemThatIsNotWhatItsChainComputes) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.nodes[0].problem = std::string(kConv) + "+add+silu";
  EXPECT_NE(error_of(graph, plan).find("conv is"), std::string::npos) << error_of(graph, plan);
}

TEST(FitPlan, RefusesAnAnchorThatTheAbsorbedNodeDoesNotRead) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.nodes[1] = chosen("add", "add_f32_n1c4h8w8", "cpu.eltwise");
  plan.nodes[0].problem = std::string(kConv) + "+relu";
  EXPECT_NE(error_of(graph, plan).find("conv cannot absorb relu"), std::string::npos)
      << error_of(graph, plan);
}

TEST(FitPlan, RefusesANodeThatNothingComputes) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.nodes[2].absorbed_by = "add";
  plan.nodes[0].problem = std::string(kConv) + "+add";
  EXPECT_NE(error_of(graph, plan).find("no entry of the plan computes relu"), std::string::npos)
      << error_of(graph, plan);
  plan.nodes.pop_back();
  EXPECT_NE(error_of(graph, plan).find("the plan lacks relu"), std::string::npos)
      << error_of(graph, plan);
}

PlanTransform change(std::string problem) {
  PlanTransform transform;
  transform.value = "conv";
  transform.problem = std::move(problem);
  transform.primitive = {"layout.tiled", Layout::kNchw, Layout::kNhwc};
  return transform;
}

TEST(FitPlan, RefusesALayoutChangeOfAnotherProblem) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.transforms = {change("transform_f32_n1c4h8w8_nchw_nhwc")};
  EXPECT_EQ(error_of(graph, plan), "");
  for (const char* problem : {"add_f32_n1c4h8w8", "transform_f32_n1c4h8w8_nhwc_nchw",
                              "transform_f32_n1c4h9w8_nchw_nhwc"}) {
    plan.transforms = {change(problem)};
    EXPECT_NE(error_of(graph, plan).find("the layout change of conv is"), std::string::npos)
        << error_of(graph, plan);
  }
}

TEST(FitPlan, RefusesAViewOfAnotherOperation) {
  const Graph graph = residual_graph();
  for (const char* view : {"view.slice", "view.concat", "view.relabel"}) {
    Plan plan = fused_plan(graph);
    plan.nodes[0].primitive.name = view;
    EXPECT_NE(error_of(graph, plan).find("cannot compute conv"), std::string::npos)
        << error_of(graph, plan);
  }
}

TEST(FitPlan, RefusesANodeThatIsThereTwice) {
  const Graph graph = residual_graph();
  Plan plan = fused_plan(graph);
  plan.nodes[2] = plan.nodes[1];
  EXPECT_NE(error_of(graph, plan).find("the plan has add twice"), std::string::npos)
      << error_of(graph, plan);
}

TEST(FitPlan, NamesTheFirstDifferenceToAnotherGraph) {
  const Graph graph = residual_graph();
  Graph other = graph;
  other.nodes[1].name = "sum";
  other.values[2].name = "sum";
  EXPECT_NE(error_of(other, fused_plan(graph)).find("node 1 is add in the plan, sum in the model"),
            std::string::npos)
      << error_of(other, fused_plan(graph));
  other = graph;
  other.outputs = {2, 3};
  EXPECT_NE(error_of(other, fused_plan(graph)).find("inputs or the outputs differ"),
            std::string::npos);
}

}  // namespace
}  // namespace torchalgo
