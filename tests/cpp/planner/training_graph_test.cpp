// SPDX-License-Identifier: BSD-3-Clause
#include "planner/training_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "ir/graph_text.h"
#include "planner/brute_force.h"
#include "planner/sample.h"

namespace torchalgo::planner_test {
namespace {

// "name kind (inputs) -> outputs problem" of each node after the forward pass.
std::vector<std::string> backward_of(const Graph& inference, const Graph& training) {
  std::vector<std::string> lines;
  for (std::size_t n = inference.nodes.size(); n < training.nodes.size(); ++n) {
    const Node& node = training.nodes[n];
    std::string line = node.name + " (";
    for (const int value : node.inputs) line += training.values[value].name + " ";
    line.back() = ')';
    lines.push_back(line + (node.problem ? " " + to_string(*node.problem) : ""));
  }
  return lines;
}

PlanResult plan_of(const Sample& sample) {
  return make_plan(sample.graph, sample.candidates, sample.transforms, sample.costs);
}

}  // namespace

TEST(TrainingGraph, GoesBackThroughConvolutionsReluAndAddition) {
  FlowBuilder flow;
  const int x = flow.conv(flow.input(8), 8);
  const int y = flow.conv(x, 8);
  flow.output(flow.relu(flow.add(y, x)));
  const Graph training = training_graph(flow.graph());
  EXPECT_EQ(backward_of(flow.graph(), training),
            (std::vector<std::string>{
                "relu_00003.bwd (v00004.grad v00004) bwd_relu_f32_n1c8h4w4",
                "conv_00001.bwd_filter (v00001 relu_00003.bwd) "
                "bwd_filter_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1",
                "conv_00001.bwd_data (relu_00003.bwd) "
                "bwd_data_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1",
                "v00001.bwd_sum1.add (relu_00003.bwd conv_00001.bwd_data) add_f32_n1c8h4w4",
                // The input needs no gradient.
                "conv_00000.bwd_filter (v00000 v00001.bwd_sum1.add) "
                "bwd_filter_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"}));
  EXPECT_EQ(training.inputs.size(), 2U);
  EXPECT_EQ(training.outputs.size(), 3U);  // the result, and the gradients of two weights
}

TEST(TrainingGraph, LeavesTheGradientsOfUnevenPaddingToPyTorch) {
  FlowBuilder flow;
  flow.output(flow.conv(flow.conv(flow.input(8), 8), 8));
  Graph graph = flow.graph();
  auto& conv = std::get<ConvProblem>(*graph.nodes[1].problem);
  conv.r = conv.s = 2;
  conv.extra_h = conv.extra_w = 1;
  EXPECT_EQ(backward_of(graph, training_graph(graph)),
            (std::vector<std::string>{"conv_00001.bwd (v00002.grad v00001)",
                                      "conv_00000.bwd_filter (v00000 conv_00001.bwd0) "
                                      "bwd_filter_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"}));
}

TEST(TrainingGraph, SlicesTheGradientOfAConcatenationAndKeepsOpaqueOpsOpaque) {
  FlowBuilder flow;
  const int a = flow.conv(flow.input(8), 8);
  const int b = flow.opaque({a}, 8);
  flow.output(flow.concat({a, b}));
  const Graph training = training_graph(flow.graph());
  EXPECT_EQ(backward_of(flow.graph(), training),
            (std::vector<std::string>{
                "concat_00002.bwd_slice0 (v00003.grad) slice_f32_n1c16h4w4_k8from0",
                "concat_00002.bwd_slice1 (v00003.grad) slice_f32_n1c16h4w4_k8from8",
                "opaque_00001.bwd (concat_00002.bwd_slice1 v00001)",
                "v00001.bwd_sum1.add (concat_00002.bwd_slice0 opaque_00001.bwd0) add_f32_n1c8h4w4",
                "conv_00000.bwd_filter (v00000 v00001.bwd_sum1.add) "
                "bwd_filter_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1"}));
}

// The moments depend on x, but the gradient through them is a part of the batch norm's own.
TEST(TrainingGraph, GoesBackThroughABatchNorm) {
  const Graph graph = parse_graph(
      "torchalgo graph 1\n"
      "value\tx\t2,8,4,4\tf32\nvalue\ty\t2,8,4,4\tf32\nvalue\tm\t2,8,1,1\tf32\n"
      "value\tz\t2,8,4,4\tf32\n"
      "node\tconv\tc\t0\t1\tfwd_f32_n2c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias\t\n"
      "node\tbn.moments\tm\t1\t2\tmoments_f32_n2c8h4w4\t\n"
      "node\tbn\tn\t1,2\t3\tnormalize_f32_n2c8h4w4_eps1e-05\t\n"
      "input\t0\tnchw\noutput\t3\n");
  EXPECT_EQ(backward_of(graph, training_graph(graph)),
            (std::vector<std::string>{
                "bn.bwd_sums (z.grad y m) bwd_normalize_sums_f32_n2c8h4w4_eps1e-05",
                "bn.bwd (z.grad y m bn.bwd_sums) bwd_normalize_f32_n2c8h4w4_eps1e-05",
                "conv.bwd_filter (x bn.bwd) bwd_filter_f32_n2c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1",
                "conv.bwd_bias (bn.bwd) channelsums_f32_n2c8h4w4"}));
}

// Returns a batch norm of x with an activation, whose result `reader` reads. The last value is w.
Graph graph_behind_norm(const std::string& activation, const std::string& reader) {
  return parse_graph(
      "torchalgo graph 1\n"
      "value\tx\t2,8,4,4\tf32\nvalue\tm\t2,8,1,1\tf32\nvalue\ty\t2,8,4,4\tf32\n"
      "value\tz\t2,8,4,4\tf32\nvalue\tw\t2,8,4,4\tf32\n"
      "node\tbn.moments\tm\t0\t1\tmoments_f32_n2c8h4w4\t\n"
      "node\tbn\tn\t0,1\t2\tnormalize_f32_n2c8h4w4_eps1e-05\t\n"
      "node\tact\ta\t2\t3\t" +
      activation + "_f32_n2c8h4w4\t\n" + reader + "input\t0\tnchw\noutput\t4\n");
}

constexpr const char* kConv =
    "node\tconv\tc\t3\t4\tfwd_f32_n2c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1\t\n";
constexpr const char* kAddition = "node\tadd\tc\t3,2\t4\tadd_f32_n2c8h4w4\t\n";

TEST(TrainingGraph, TakesAReluIntoTheGradientOfABatchNorm) {
  const Graph graph = graph_behind_norm("relu", kConv);
  EXPECT_EQ(
      backward_of(graph, training_graph(graph, {0})),
      (std::vector<std::string>{
          "conv.bwd_filter (z w.grad) bwd_filter_f32_n2c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1",
          "conv.bwd_data (w.grad) bwd_data_f32_n2c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1",
          "bn.bwd_sums (conv.bwd_data x m) bwd_normalize_sums_f32_n2c8h4w4_eps1e-05+relu",
          "bn.bwd (conv.bwd_data x m bn.bwd_sums) bwd_normalize_f32_n2c8h4w4_eps1e-05+relu"}));
}

TEST(TrainingGraph, LeavesOtherActivationsBehindABatchNormAlone) {
  for (const auto& [activation, reader] :
       {std::pair("silu", kConv), std::pair("relu", kAddition)}) {  // the sum reads y too
    const Graph graph = graph_behind_norm(activation, reader);
    const auto lines = backward_of(graph, training_graph(graph, {0}));
    EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                            [](const std::string& line) { return line.starts_with("act.bwd "); }),
              1)
        << activation;
  }
}

// The results of the batch norm and of the activation are computed again once, for all readers.
TEST(TrainingGraph, ComputesAResultAgainBeforeItsFirstReader) {
  const Graph graph = graph_behind_norm("silu", kConv);
  EXPECT_EQ(recomputable_values(graph), std::vector<int>{3});
  EXPECT_EQ(backward_of(graph, training_graph(graph, {0}, {3})),
            (std::vector<std::string>{
                "bn.bwd_again (x m) normalize_f32_n2c8h4w4_eps1e-05",
                "act.bwd_again (bn.bwd_again) silu_f32_n2c8h4w4",
                "conv.bwd_filter (act.bwd_again w.grad) "
                "bwd_filter_f32_n2c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1",
                "conv.bwd_data (w.grad) bwd_data_f32_n2c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1",
                "act.bwd (conv.bwd_data bn.bwd_again) bwd_silu_f32_n2c8h4w4",
                "bn.bwd_sums (act.bwd x m) bwd_normalize_sums_f32_n2c8h4w4_eps1e-05",
                "bn.bwd (act.bwd x m bn.bwd_sums) bwd_normalize_f32_n2c8h4w4_eps1e-05"}));
  // The gradient of a sum reads none of its inputs, so nothing would be saved.
  EXPECT_TRUE(recomputable_values(graph_behind_norm("relu", kAddition)).empty());
}

// The scale gets the sum of (gradient * image) over each image's pixels, not its mean.
TEST(TrainingGraph, GoesBackThroughASqueezeAndExcitation) {
  const Graph graph = parse_graph(
      "torchalgo graph 1\n"
      "value\tx\t2,8,4,4\tf32\nvalue\tmean\t2,8,1,1\tf32\nvalue\ty\t2,8,1,1\tf32\n"
      "value\tscale\t2,8,1,1\tf32\nvalue\tz\t2,8,4,4\tf32\n"
      "node\tpool\tp\t0\t1\tavgpool_f32_n2c8h4w4_p1q1\t\n"
      "node\tconv\tc\t1\t2\tfwd_f32_n2c8h1w1_k8r1s1_st1x1_pad0x0_dil1x1_g1\t\n"
      "node\tact\ta\t2\t3\tsigmoid_f32_n2c8h1w1\t\n"
      "node\tmul\tm\t0,3\t4\tmul_f32_n2c8h4w4_channelwise\t\n"
      "input\t0\tnchw\noutput\t4\n");
  EXPECT_EQ(backward_of(graph, training_graph(graph, {0})),
            (std::vector<std::string>{
                "mul.bwd (z.grad scale) mul_f32_n2c8h4w4_channelwise",
                "mul.bwd_second (z.grad x) channelsums_f32_n2c8h4w4_perimage_product",
                "act.bwd (mul.bwd_second y) bwd_sigmoid_f32_n2c8h1w1",
                "conv.bwd_filter (mean act.bwd) "
                "bwd_filter_f32_n2c8h1w1_k8r1s1_st1x1_pad0x0_dil1x1_g1",
                "conv.bwd_data (act.bwd) bwd_data_f32_n2c8h1w1_k8r1s1_st1x1_pad0x0_dil1x1_g1",
                "pool.bwd (conv.bwd_data) bwd_avgpool_f32_n2c8h4w4_p1q1",
                "x.bwd_sum1.add (mul.bwd pool.bwd) add_f32_n2c8h4w4"}));
}

// A sum with numbers per channel gives them the plain sums.
TEST(TrainingGraph, GoesBackThroughASumWithNumbersPerChannel) {
  const Graph graph = parse_graph(
      "torchalgo graph 1\n"
      "value\tx\t2,8,4,4\tf32\nvalue\ts\t2,8,1,1\tf32\nvalue\ty\t2,8,4,4\tf32\n"
      "node\tadd\ta\t0,1\t2\tadd_f32_n2c8h4w4_channelwise\t\n"
      "input\t0\tnchw\ninput\t1\tnchw\noutput\t2\n");
  const Graph training = training_graph(graph, {0, 1});
  EXPECT_EQ(
      backward_of(graph, training),
      (std::vector<std::string>{"add.bwd_second (y.grad) channelsums_f32_n2c8h4w4_perimage"}));
  EXPECT_EQ(training.values[training.outputs[1]].name, "y.grad");
}

TEST(TrainingGraph, SurvivesItsText) {
  std::mt19937_64 random(31);
  for (int round = 0; round < 100; ++round) {
    const Graph graph = random_training_sample(random, {.nodes = 8}).graph;
    EXPECT_EQ(parse_graph(to_text(graph)), graph);
  }
}

// The weights' gradient reads src in one layout and diff_dst in another.
TEST(MakePlan, ReadsTheTwoInputsOfAWeightGradientInTheirOwnLayouts) {
  FlowBuilder flow;
  flow.output(flow.conv(flow.input(8, Layout::kNhwc), 8));
  Sample sample{training_graph(flow.graph()), {}, {}, {}};
  sample.candidates.refusals.resize(2);
  sample.candidates.by_anchor = {
      {candidate(sample.graph, {0}, "test.a", Layout::kNhwc, Layout::kNchw)},
      {candidate(sample.graph, {1}, "test.a", Layout::kNhwc, Layout::kNchw)}};
  add_transforms_and_costs(sample, [] { return 100; });
  EXPECT_EQ(plan_of(sample).plan.cost, 200);  // nothing changes its layout
  sample.candidates.by_anchor[1] = {
      candidate(sample.graph, {1}, "test.a", Layout::kNchw, Layout::kNhwc)};
  add_transforms_and_costs(sample, [] { return 100; });
  EXPECT_EQ(plan_of(sample).plan.cost, 400);  // both do
}

TEST(MakePlan, EqualsBruteForceOnRandomTrainingGraphs) {
  std::mt19937_64 random(32);
  std::map<Direction, int> shared;
  for (int rounds = 0; rounds < 1200;) {
    const Sample sample = random_training_sample(
        random, {.nodes = 2 + rounds % 4, .extra_candidates = 1 + rounds % 2});
    if (sample.graph.nodes.size() > 12) continue;
    ++rounds;
    const Plan plan = plan_of(sample).plan;
    const auto optimum = least_cost(sample);
    ASSERT_TRUE(optimum.has_value()) << describe(sample);
    ASSERT_EQ(plan.cost, *optimum) << describe(sample);
    ASSERT_EQ(plan.status, PlanStatus::kOptimal);
    std::string why;
    ASSERT_EQ(replay(sample, plan, why), plan.cost) << why << "\n" << describe(sample);
    for (const Node& node : sample.graph.nodes) {
      const auto* conv = node.problem ? std::get_if<ConvProblem>(&*node.problem) : nullptr;
      if (conv != nullptr) ++shared[conv->direction];
    }
  }
  EXPECT_GT(shared[Direction::kBackwardFilter], 1000);
  EXPECT_GT(shared[Direction::kBackwardData], 200);
}

}  // namespace torchalgo::planner_test
