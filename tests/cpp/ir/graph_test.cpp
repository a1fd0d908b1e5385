// SPDX-License-Identifier: BSD-3-Clause
#include "ir/graph.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ir/primitive.h"

namespace torchalgo {
namespace {

// x -> conv -> relu -> out
Graph small_graph() {
  Graph graph;
  graph.values = {{"x", {1, 8, 4, 4}, DType::kF32, -1},
                  {"conv", {1, 8, 4, 4}, DType::kF32, 0},
                  {"relu", {1, 8, 4, 4}, DType::kF32, 1}};
  graph.nodes = {{"conv",
                  "aten::conv2d",
                  {0},
                  {1},
                  parse_problem("fwd_f32_n1c8h4w4_k8r3s3_st1x1_pad1x1_dil1x1_g1"),
                  ""},
                 {"relu", "aten::relu", {1}, {2}, parse_problem("relu_f32_n1c8h4w4"), ""}};
  graph.inputs = {0};
  graph.input_layouts = {Layout::kNchw};
  graph.outputs = {2};
  return graph;
}

TEST(StructureHash, ChangesWithEachPartOfTheStructure) {
  const Graph graph = small_graph();
  const std::string hash = structure_hash(graph);
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash, structure_hash(small_graph()));
  Graph other = graph;
  other.nodes[0].name = "conv1";
  EXPECT_NE(structure_hash(other), hash);
  other = graph;
  other.nodes[0].problem = parse_problem("fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1");
  EXPECT_NE(structure_hash(other), hash);
  other = graph;
  other.outputs = {1, 2};
  EXPECT_NE(structure_hash(other), hash);
  other = graph;
  other.input_layouts = {Layout::kNhwc};
  EXPECT_NE(structure_hash(other), hash);
}

// A failure here means: raise kStructureVersion, or plans on disk no longer fit their models.
TEST(StructureHash, IsThatOfItsVersion) {
  ASSERT_EQ(kStructureVersion, 4);
  EXPECT_EQ(structure_hash(small_graph(), 1), "debb8cbce6676d15");
  EXPECT_EQ(structure_hash(small_graph(), 2), "5ab170fc696b7e7c");
  EXPECT_EQ(structure_hash(small_graph(), 3), "3e96ebd19e35c423");
  EXPECT_EQ(structure_hash(small_graph()), "f47ad63d50c8f952");
}

// A plan that was made when such nodes read nchw still fits its model.
TEST(StructureHash, DoesNotDependOnWhatAnOpaqueNodeReads) {
  Graph graph = small_graph();
  graph.nodes.push_back({"size", "aten::size", {2}, {}, std::nullopt, ""});
  const std::string hash = structure_hash(graph);
  graph.nodes.back().reads_shape_only = true;
  EXPECT_EQ(structure_hash(graph), hash);
}

TEST(StructureHash, DependsOnTheLayoutsOfAViewFromVersion3On) {
  Graph graph = small_graph();
  graph.nodes.push_back({"view", "aten::permute", {2}, {}, std::nullopt, ""});
  const std::string now = structure_hash(graph), before = structure_hash(graph, 2);
  graph.nodes.back().reads = Layout::kNhwc;
  EXPECT_NE(structure_hash(graph), now);
  EXPECT_EQ(structure_hash(graph, 2), before);
}

TEST(CheckGraph, FindsBrokenGraphs) {
  EXPECT_NO_THROW(check_graph(small_graph()));
  Graph graph = small_graph();
  graph.nodes[1].name = "conv";
  EXPECT_THROW(check_graph(graph), InternalError);
  graph = small_graph();
  graph.nodes[0].inputs = {2};
  EXPECT_THROW(check_graph(graph), InternalError);
  graph = small_graph();
  graph.nodes[1].reads_shape_only = true;
  EXPECT_THROW(check_graph(graph), InternalError);
  graph = small_graph();
  graph.nodes[1].makes = Layout::kNhwc;
  EXPECT_THROW(check_graph(graph), InternalError);
  graph = small_graph();
  graph.outputs = {7};
  EXPECT_THROW(check_graph(graph), InternalError);
}

TEST(ReadersOf, ListsAReaderOncePerUse) {
  Graph graph = small_graph();
  graph.nodes[1].inputs = {1, 1};
  EXPECT_EQ(readers_of(graph), (std::vector<std::vector<int>>{{0}, {1, 1}, {}}));
}

TEST(Layout, WordsAndSizesAgree) {
  for (const Layout layout : kAllLayouts) EXPECT_EQ(parse_layout(to_string(layout)), layout);
  EXPECT_FALSE(parse_layout("NCHW"));
  EXPECT_EQ(refuse_layout("NCHW"),
            "'NCHW' is no layout: expected nchw, nhwc, nhwc.bf16 or nChw16c");
  EXPECT_FALSE(parse_layout("nChw8c"));
  EXPECT_EQ(refuse_layout("nChw8c"),
            "'nChw8c' is no longer a layout, since no algorithm used it: expected nchw, nhwc, "
            "nhwc.bf16 or "
            "nChw16c");
  EXPECT_EQ(element_count(Layout::kNChw16c, 2, 17, 9), 2 * 32 * 9);
  EXPECT_EQ(element_count(Layout::kNhwc, 2, 17, 9), 2 * 17 * 9);
}

TEST(MatchesName, StopsAtVariants) {
  EXPECT_TRUE(matches_name("cpu.direct", "cpu.direct"));
  EXPECT_TRUE(matches_name("cpu.direct.t14", "cpu.direct"));
  EXPECT_TRUE(matches_name("cpu.direct{X=1}", "cpu.direct"));
  EXPECT_TRUE(matches_name("cpu.direct", "cpu.direct."));
  EXPECT_FALSE(matches_name("cpu.direct.t14", "cpu.direct."));
  EXPECT_FALSE(matches_name("cpu.direct2", "cpu.direct"));
  EXPECT_FALSE(matches_name("cpu.direct", "cpu.direct.t14"));
  EXPECT_FALSE(matches_name("cpu", "cpu.direct"));
}

}  // namespace
}  // namespace torchalgo
