// SPDX-License-Identifier: BSD-3-Clause
#include "provider/find_candidates.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "provider/cpu_device.h"

namespace torchalgo {
namespace {

Algorithm row(std::string_view name, std::function<Offer(const Problem&, const Device&)> offer) {
  Algorithm algorithm;
  algorithm.name = name;
  algorithm.offer = std::move(offer);
  return algorithm;
}

Offer everything_in(Layout layout, const char* name, std::int64_t workspace = 0) {
  return {{Primitive{name, layout, layout, workspace}}, {}};
}

// Offers all in nchw, and convolutions of any epilogue in nChw16c.
Algorithms two_rows() {
  return {row("plain.all", [](const Problem&,
                              const Device&) { return everything_in(Layout::kNchw, "plain.all"); }),
          row("fast.conv", [](const Problem& problem, const Device&) -> Offer {
            if (!std::holds_alternative<ConvProblem>(problem)) return {{}, "needs a convolution"};
            return everything_in(Layout::kNChw16c, "fast.conv", 4096);
          })};
}

// x -> conv -> add(, x) -> relu -> out, all of one shape.
Graph residual_graph() {
  const std::vector<std::int64_t> sizes = {1, 16, 8, 8};
  Graph graph;
  graph.values = {{"x", sizes, DType::kF32, -1},
                  {"conv", sizes, DType::kF32, 0},
                  {"add", sizes, DType::kF32, 1},
                  {"relu", sizes, DType::kF32, 2}};
  graph.nodes = {{"conv",
                  "aten::conv2d",
                  {0},
                  {1},
                  parse_problem("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias"),
                  ""},
                 {"add", "aten::add", {0, 1}, {2}, parse_problem("add_f32_n1c16h8w8"), ""},
                 {"relu", "aten::relu", {2}, {3}, parse_problem("relu_f32_n1c16h8w8"), ""}};
  graph.inputs = {0};
  graph.input_layouts = {Layout::kNchw};
  graph.outputs = {3};
  return graph;
}

std::set<std::string> spellings(const std::vector<Candidate>& candidates) {
  std::set<std::string> texts;
  for (const Candidate& candidate : candidates) texts.insert(to_string(candidate.problem));
  return texts;
}

TEST(FindCandidates, OffersTheConvolutionAloneAndWithWhatItMayAbsorb) {
  const Graph graph = residual_graph();
  const Candidates candidates = find_candidates(graph, two_rows(), Device());
  const std::string conv = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias";
  EXPECT_EQ(spellings(candidates.by_anchor[0]),
            (std::set<std::string>{conv, conv + "+add", conv + "+add+relu"}));
  for (const Candidate& candidate : candidates.by_anchor[0]) {
    if (candidate.covers.size() == 1) {
      EXPECT_EQ(candidate.inputs, (std::vector<int>{0}));
    } else {
      EXPECT_EQ(candidate.inputs, (std::vector<int>{0, 0}));  // src, then the residual: both x
    }
  }
  EXPECT_EQ(spellings(candidates.by_anchor[1]),
            (std::set<std::string>{"add_f32_n1c16h8w8", "add_f32_n1c16h8w8+relu"}));
  EXPECT_EQ(candidates.by_anchor[2].size(), 1u);
  ASSERT_FALSE(candidates.refusals[2].empty());
  EXPECT_EQ(candidates.refusals[2][0].reason, "needs a convolution");
}

TEST(FindCandidates, NeverAbsorbsAValueThatSomebodyElseSees) {
  Graph graph = residual_graph();
  graph.outputs = {3, 1};  // the convolution's own result leaves the graph
  EXPECT_EQ(spellings(find_candidates(graph, two_rows(), Device()).by_anchor[0]).size(), 1u);
  graph = residual_graph();
  graph.values.push_back({"other", {1, 16, 8, 8}, DType::kF32, 3});
  graph.nodes.push_back({"other", "aten::tanh", {1}, {4}, std::nullopt, ""});
  EXPECT_EQ(spellings(find_candidates(graph, two_rows(), Device()).by_anchor[0]).size(), 1u);
}

TEST(FindCandidates, DoesNotAbsorbAnAddOfTheValueToItself) {
  Graph graph = residual_graph();
  graph.nodes[1].inputs = {1, 1};
  EXPECT_EQ(spellings(find_candidates(graph, two_rows(), Device()).by_anchor[0]).size(), 1u);
}

TEST(FindCandidates, GivesTensorsOfOtherRanksNoBlockedLayout) {
  Graph graph = residual_graph();
  for (Value& value : graph.values) value.sizes = {1, 16, 8};
  const Candidates candidates = find_candidates(graph, two_rows(), Device());
  for (const Candidate& candidate : candidates.by_anchor[0]) {
    EXPECT_EQ(candidate.primitive.src, Layout::kNchw);
  }
}

constexpr const char* kExpand = "fwd_f32_n1c8h8w8_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias";
constexpr const char* kDepthwise = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g16+bias";
constexpr const char* kProject = "fwd_f32_n1c16h8w8_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias";

// x -> expand -> relu -> depthwise -> project -> add(, x) -> out.
Graph inverted_residual() {
  const std::vector<std::int64_t> narrow = {1, 8, 8, 8}, wide = {1, 16, 8, 8};
  Graph graph;
  graph.values = {{"x", narrow, DType::kF32, -1},      {"expand", wide, DType::kF32, 0},
                  {"relu", wide, DType::kF32, 1},      {"depthwise", wide, DType::kF32, 2},
                  {"project", narrow, DType::kF32, 3}, {"add", narrow, DType::kF32, 4}};
  graph.nodes = {{"expand", "aten::conv2d", {0}, {1}, parse_problem(kExpand), ""},
                 {"relu", "aten::relu", {1}, {2}, parse_problem("relu_f32_n1c16h8w8"), ""},
                 {"depthwise", "aten::conv2d", {2}, {3}, parse_problem(kDepthwise), ""},
                 {"project", "aten::conv2d", {3}, {4}, parse_problem(kProject), ""},
                 {"add", "aten::add", {4, 0}, {5}, parse_problem("add_f32_n1c8h8w8"), ""}};
  graph.inputs = {0};
  graph.input_layouts = {Layout::kNchw};
  graph.outputs = {5};
  return graph;
}

TEST(FindCandidates, ChainsConvolutionsAroundADepthwiseOne) {
  const Graph graph = inverted_residual();
  const Candidates candidates = find_candidates(graph, two_rows(), Device());
  const std::string filters =
      std::string(kExpand).substr(4) + "+relu" +
      std::string(kDepthwise).substr(std::string("fwd_f32_n1c16h8w8").size());
  const std::string chain = "chain_" + filters + "_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias";
  EXPECT_EQ(spellings(candidates.by_anchor[0]),
            (std::set<std::string>{kExpand, std::string(kExpand) + "+relu", "chain_" + filters,
                                   chain, chain + "+add"}));
  const Candidate& longest = candidates.by_anchor[0].back();
  EXPECT_EQ(to_string(longest.problem), chain + "+add");
  EXPECT_EQ(longest.covers, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(longest.inputs, (std::vector<int>{0, 0}));
  EXPECT_EQ(spellings(candidates.by_anchor[2]).size(), 3U);  // it begins a chain of its own
  EXPECT_EQ(spellings(candidates.by_anchor[3]).size(), 2U);
}

TEST(FindCandidates, ScalesInTheCallOfThe1x1ConvolutionBehindIt) {
  Graph graph = inverted_residual();
  graph.nodes[0].problem = parse_problem("scaleshift_f32_n1c16h8w8");
  graph.nodes[2].problem = parse_problem("fwd_f32_n1c16h8w8_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias");
  const Candidates candidates = find_candidates(graph, two_rows(), Device());
  const std::string chain =
      "chain_f32_n1c16h8w8_scaleshift+relu_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias";
  EXPECT_EQ(
      spellings(candidates.by_anchor[0]),
      (std::set<std::string>{"scaleshift_f32_n1c16h8w8", "scaleshift_f32_n1c16h8w8+relu", chain}));
}

TEST(FindCandidates, PoolsInTheCallOfThe1x1ConvolutionsBehindIt) {
  Graph graph = inverted_residual();
  graph.nodes[0].problem = parse_problem("avgpool_f32_n1c16h8w8_p1q1");
  graph.nodes[1].problem = parse_problem("relu_f32_n1c16h1w1");
  const std::string one = "_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias";
  graph.nodes[2].problem = parse_problem("fwd_f32_n1c16h1w1" + one);
  EXPECT_EQ(spellings(find_candidates(graph, two_rows(), Device()).by_anchor[0]),
            (std::set<std::string>{"avgpool_f32_n1c16h8w8_p1q1"}));  // an activation is no part
  graph.nodes[1].problem = graph.nodes[2].problem;
  EXPECT_EQ(
      spellings(find_candidates(graph, two_rows(), Device()).by_anchor[0]),
      (std::set<std::string>{"avgpool_f32_n1c16h8w8_p1q1", "chain_f32_n1c16h8w8_avgpool" + one,
                             "chain_f32_n1c16h8w8_avgpool" + one + one}));
}

TEST(FindCandidates, ChainsNothingThroughAValueThatSomebodyElseSees) {
  Graph graph = inverted_residual();
  graph.outputs = {5, 3};
  const Candidates candidates = find_candidates(graph, two_rows(), Device());
  for (const Candidate& candidate : candidates.by_anchor[0]) EXPECT_LE(candidate.covers.back(), 2);
}

TEST(FindCandidates, LeavesNoActivationToAnotherCallWhereItsOwnCallAppliesIt) {
  const Graph graph = inverted_residual();
  const Candidates candidates =
      find_candidates(graph, two_rows(), Device(), {.drop_dominated = true});
  EXPECT_FALSE(spellings(candidates.by_anchor[0]).contains(kExpand));
  EXPECT_TRUE(spellings(candidates.by_anchor[0]).contains(std::string(kExpand) + "+relu"));
  ASSERT_FALSE(candidates.refusals[0].empty());
  EXPECT_NE(candidates.refusals[0][0].reason.find("activation"), std::string::npos);
  EXPECT_TRUE(spellings(candidates.by_anchor[3]).contains(kProject));  // an addition follows
}

TEST(FindCandidates, NeverPlansALastResort) {
  Algorithms rows = two_rows();
  rows[1].is_last_resort = true;
  const Candidates candidates = find_candidates(inverted_residual(), rows, Device());
  for (const auto& list : candidates.by_anchor) {
    for (const Candidate& candidate : list) EXPECT_EQ(candidate.primitive.name, "plain.all");
  }
}

TEST(FindCandidates, RefusesAWorkspaceAboveTheLimit) {
  const Candidates candidates = find_candidates(residual_graph(), two_rows(), Device(), {1000});
  for (const Candidate& candidate : candidates.by_anchor[0]) {
    EXPECT_EQ(candidate.primitive.name, "plain.all");
  }
  ASSERT_FALSE(candidates.refusals[0].empty());
  EXPECT_NE(candidates.refusals[0][0].reason.find("4096 bytes"), std::string::npos);
}

TEST(FindAlgorithm, TakesTheLongestNameThatFits) {
  const Algorithms rows = {row("cpu.conv", nullptr), row("cpu.conv.fast", nullptr)};
  EXPECT_EQ(find_algorithm(rows, "cpu.conv.fast.t14"), &rows[1]);
  EXPECT_EQ(find_algorithm(rows, "cpu.conv{A=1}"), &rows[0]);
  EXPECT_EQ(find_algorithm(rows, "cpu.convolution"), nullptr);
}

TEST(OfferExact, ReturnsTheOneOrTheReason) {
  const Algorithms rows = two_rows();
  const Problem problem = parse_problem("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1");
  const auto found =
      offer_exact(rows[1], problem, Device(), "fast.conv", Layout::kNChw16c, Layout::kNChw16c);
  ASSERT_EQ(found.primitives.size(), 1u);
  EXPECT_EQ(found.primitives[0].workspace_bytes, 4096);
  const auto missing =
      offer_exact(rows[1], problem, Device(), "fast.conv", Layout::kNchw, Layout::kNchw);
  EXPECT_TRUE(missing.primitives.empty());
  EXPECT_EQ(missing.refusal, "has no fast.conv nchw->nchw for this problem");
}

TEST(CpuDevice, NamesAnInstructionSetThatKernelsKnow) {
  const Device device = cpu_device();
  EXPECT_TRUE(device.isa == "avx512" || device.isa == "avx2" || device.isa == "default")
      << device.isa;
  EXPECT_GE(device.threads, 1);
  EXPECT_FALSE(device.name.empty());
}

}  // namespace
}  // namespace torchalgo
