// SPDX-License-Identifier: BSD-3-Clause
#include "planner/memory_need.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ir/graph_text.h"

namespace torchalgo {
namespace {

constexpr const char* kConv = "fwd_f32_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1";
constexpr std::int64_t kPlain = 8 * 64 * 4, kBlocked = 16 * 64 * 4;  // bytes of a value

// stem -> a -> b -> add(b, stem) -> last, with v0 of the caller and v5 the result.
Graph residual_block() {
  std::string text = "torchalgo graph 1\n";
  for (int v = 0; v < 6; ++v) text += fmt::format("value\tv{}\t1,8,8,8\tf32\n", v);
  const auto add = [&](const char* name, const char* inputs, int output, const char* problem) {
    text += fmt::format("node\t{}\taten::op\t{}\t{}\t{}\t\n", name, inputs, output, problem);
  };
  add("stem", "0", 1, kConv);
  add("a", "1", 2, kConv);
  add("b", "2", 3, kConv);
  add("add", "3,1", 4, "add_f32_n1c8h8w8");
  add("last", "4", 5, kConv);
  return parse_graph(text + "input\t0\tnchw\noutput\t5\n");
}

Candidate conv(int node, int input, Layout layout, std::int64_t workspace = 0) {
  return {{node}, parse_problem(kConv), {"cpu.direct", layout, layout, workspace}, {input}};
}

using Bytes = std::vector<std::vector<std::int64_t>>;

TEST(MemoryNeed, CountsTensorsInTheirLayoutsLiveValuesAndTheWorkspace) {
  const Graph graph = residual_block();
  Candidates candidates;
  candidates.by_anchor = {
      {conv(0, 0, Layout::kNchw), conv(0, 0, Layout::kNChw16c, 100)},
      {conv(1, 1, Layout::kNchw), conv(1, 1, Layout::kNChw16c)},
      {conv(2, 2, Layout::kNchw)},
      {{{3}, parse_problem("add_f32_n1c8h8w8"), {"cpu.add"}, {3, 1}}},
      {conv(4, 4, Layout::kNchw, 7)},
  };
  EXPECT_EQ(memory_need(graph, candidates),
            (Bytes{{kPlain, kBlocked + 100},    // the input is the caller's
                   {2 * kPlain, 2 * kBlocked},  // v1, v2
                   {3 * kPlain},                // v2, v3, and v1 for the sum
                   {3 * kPlain},                // v3, v1, v4
                   {kPlain + 7}}));             // v4; the result is the caller's
}

TEST(MemoryNeed, LeavesOutWhatACallMayAbsorb) {
  const Graph graph = residual_block();
  Candidates candidates;
  const Candidate chain{{2, 3}, parse_problem(std::string(kConv) + "+add"), {"cpu.direct"}, {2, 1}};
  candidates.by_anchor = {{}, {}, {chain}, {}, {}};
  EXPECT_EQ(memory_need(graph, candidates), (Bytes{{}, {}, {3 * kPlain}, {}, {}}));  // v2, v1, v4
  // A call of stem and a would never write v1 if the sum did not read it.
  const Candidate both{{0, 1}, parse_problem(kConv), {"cpu.conv_chain"}, {0}};
  candidates.by_anchor = {{both}, {}, {conv(2, 2, Layout::kNchw)}, {}, {}};
  EXPECT_EQ(memory_need(graph, candidates), (Bytes{{kPlain}, {}, {2 * kPlain}, {}, {}}));
}

TEST(MemoryNeed, CountsOnceWhatMayShareMemory) {
  Graph graph = residual_block();
  graph.nodes[1].problem.reset();  // a may be a view of v1
  Candidates candidates;
  candidates.by_anchor = {{}, {}, {conv(2, 2, Layout::kNChw16c)}, {}, {}};
  EXPECT_EQ(memory_need(graph, candidates)[2], (std::vector<std::int64_t>{2 * kBlocked}));
}

TEST(MemoryNeed, OfAChangeOfLayoutIsBothTensorsUnlessOneIsTheCallers) {
  Graph graph = residual_block();
  const auto change = [](const char* problem, Layout to) {
    return Candidate{{}, parse_problem(problem), {"layout.tiled", Layout::kNchw, to, 5}, {}};
  };
  std::vector<Candidate> changes = {change("transform_f32_n1c8h8w8_nchw_nChw16c", Layout::kNChw16c),
                                    change("transform_f32_n1c8h8w9_nchw_nChw16c", Layout::kNChw16c),
                                    change("transform_f32_n1c8h8w9_nchw_nhwc", Layout::kNhwc)};
  changes.back().primitive.name = "view.relabel";
  EXPECT_EQ(memory_need(graph, changes),
            (std::vector<std::int64_t>{kPlain + 5, (kPlain + kBlocked) / 8 * 9 + 5, 0}));
}

}  // namespace
}  // namespace torchalgo
