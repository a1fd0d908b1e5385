// SPDX-License-Identifier: BSD-3-Clause
#include "ir/graph_text.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace torchalgo {
namespace {

Graph branching_graph() {
  Graph graph;
  graph.values = {{"x", {1, 8, 4, 4}, DType::kF32, -1},
                  {"y", {1, 8, 4, 4}, DType::kF32, 0},
                  {"list", {}, std::nullopt, 1},
                  {"out", {1, 16, 4, 4}, DType::kF32, 2}};
  graph.nodes = {{"conv",
                  "aten::conv2d",
                  {0},
                  {1},
                  parse_problem("fwd_f32_n1c8h4w4_k8r3s3_st1x1_pad1x1_dil1x1_g1+bias"),
                  ""},
                 {"list", "prim::ListConstruct", {0, 1}, {2}, std::nullopt, "a list, no tensor"},
                 {"cat", "aten::cat", {0, 1}, {3}, parse_problem("concat_f32_n1c8x8h4w4"), ""},
                 {"size", "aten::size", {3}, {}, std::nullopt, "", true},
                 {"print", "prim::Print", {3}, {}, std::nullopt, ""}};
  graph.inputs = {0};
  graph.input_layouts = {Layout::kNhwc};
  graph.outputs = {3, 1};
  return graph;
}

TEST(GraphText, RoundTripsEveryField) {
  const Graph graph = branching_graph();
  EXPECT_EQ(parse_graph(to_text(graph)), graph);
  EXPECT_EQ(parse_graph(to_text(Graph())), Graph());
}

TEST(GraphText, KeepsTheLayoutsOfViews) {
  Graph graph = branching_graph();
  graph.nodes.back().reads = Layout::kNhwc;
  EXPECT_NE(to_text(graph).find("nhwc->nchw"), std::string::npos);
  EXPECT_EQ(parse_graph(to_text(graph)), graph);
}

TEST(GraphText, RefusesANameThatTheFormatCannotHold) {
  Graph graph = branching_graph();
  graph.nodes[0].name = "a\tb";
  EXPECT_THROW(static_cast<void>(to_text(graph)), Error);
}

std::string message_of(const std::string& text) {
  try {
    static_cast<void>(parse_graph(text));
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(GraphText, NamesTheLineThatIsNone) {
  const std::string head = "torchalgo graph 1\nvalue\tx\t1,2\tf32\n";
  EXPECT_NE(message_of("").find("first line"), std::string::npos);
  EXPECT_NE(message_of("torchalgo graph 2\n").find("torchalgo graph 1"), std::string::npos);
  EXPECT_NE(message_of(head + "edge\t1").find("line 3"), std::string::npos);
  EXPECT_NE(message_of(head + "value\ty\t1,z\tf32").find("got 'z', expected a number"),
            std::string::npos);
  EXPECT_NE(message_of(head + "value\ty\t1\tf33").find("no compute type"), std::string::npos);
  EXPECT_NE(message_of(head + "value\ty").find("fields"), std::string::npos);
  EXPECT_NE(message_of(head + "output\t7").find("no value 7"), std::string::npos);
  EXPECT_NE(message_of(head + "input\t0\tnwhc").find("no layout"), std::string::npos);
  const std::string view = head + "node\tv\taten::permute\t0\t-\t";
  for (const std::string& line :
       {head + "input\t0\tnChw8c\n", view + "nChw8c->nchw\t\n", view + "nchw->nChw8c\t\n"}) {
    EXPECT_NE(message_of(line).find("line 3: 'nChw8c' is no longer a layout"), std::string::npos)
        << message_of(line);
  }
  EXPECT_NE(message_of(head + "output\t0").find("not a valid graph"), std::string::npos);
}

}  // namespace
}  // namespace torchalgo
