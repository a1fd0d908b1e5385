// SPDX-License-Identifier: BSD-3-Clause
#include "planner/concat_buffers.h"

#include <gtest/gtest.h>

#include <set>

#include "ir/concat_flow.h"
#include "ir/view.h"

namespace torchalgo {
namespace {

constexpr Layout kLayout = Layout::kNChw16c;

// The slots of a plan in which `views` are view.concat and the other nodes cpu.concat.
ConcatBuffers slots_of(const Graph& graph, const std::set<int>& views) {
  FittedPlan plan;
  plan.call_at.resize(graph.nodes.size());
  for (int node = 0; node < static_cast<int>(graph.nodes.size()); ++node) {
    const std::string name = views.contains(node) ? std::string(kViewConcat) : "cpu.concat";
    plan.call_at[node] = PlannedCall{graph.nodes[node].name,      {node},
                                     *graph.nodes[node].problem,  {name, kLayout, kLayout},
                                     graph.nodes[node].inputs,    std::nullopt,
                                     graph.nodes[node].outputs[0]};
  }
  return concat_buffers(graph, plan);
}

TEST(ConcatBuffers, AreOneBufferForADenseBlockAsLargeAsWhatIsRead) {
  Flow flow;
  const int a = flow.value(64), b = flow.value(32), c = flow.value(20);
  flow.concat({a, b});
  flow.concat({a, b, c});
  const ConcatBuffers all = slots_of(flow.graph, {0, 1});
  EXPECT_EQ(all.buffers, (std::vector<std::vector<std::int64_t>>{{1, 8, 4, 4, 16}}));
  EXPECT_EQ(all.of_value.at({c, kLayout}), (BufferPart{0, 96}));
  EXPECT_EQ(all.buffer_of, (std::map<int, int>{{0, 0}, {1, 0}}));
  const ConcatBuffers small = slots_of(flow.graph, {0});
  EXPECT_EQ(small.buffers, (std::vector<std::vector<std::int64_t>>{{1, 6, 4, 4, 16}}));
  EXPECT_FALSE(small.of_value.contains({c, kLayout}));
  EXPECT_TRUE(slots_of(flow.graph, {}).buffers.empty());
}

TEST(ConcatBuffers, NestWhereBothAreViews) {
  Flow flow;
  const int a = flow.value(32), b = flow.value(32), c = flow.value(48);
  const int inner = flow.concat({a, b});
  flow.concat({c, inner});
  const ConcatBuffers both = slots_of(flow.graph, {0, 1});
  EXPECT_EQ(both.buffers.size(), 1U);
  EXPECT_EQ(both.of_value.at({b, kLayout}), (BufferPart{0, 80}));
  EXPECT_EQ(both.of_value.at({inner, kLayout}), (BufferPart{0, 48}));
  const ConcatBuffers outer = slots_of(flow.graph, {1});
  EXPECT_EQ(outer.buffers.size(), 1U);
  EXPECT_FALSE(outer.of_value.contains({a, kLayout}));  // inner's own writer fills its place
  const ConcatBuffers only_inner = slots_of(flow.graph, {0});
  EXPECT_EQ(only_inner.buffers, (std::vector<std::vector<std::int64_t>>{{1, 4, 4, 4, 16}}));
  EXPECT_FALSE(only_inner.of_value.contains({inner, kLayout}));
}

TEST(ConcatBuffers, NoTwoWritersMeetWhicheverConcatenationsAreViews) {
  Flow flow;
  const int a = flow.value(32), b = flow.value(32), c = flow.value(32), d = flow.value(32);
  const int ab = flow.concat({a, b});
  flow.concat({ab, c});
  flow.concat({a, b});  // another reader of the same parts
  flow.concat({b, d});
  const int abc = flow.concat({ab, c, d});
  flow.concat({abc, flow.value(32)});
  const int nodes = static_cast<int>(flow.graph.nodes.size());
  for (int choice = 0; choice < 1 << nodes; ++choice) {
    std::set<int> views;
    for (int n = 0; n < nodes; ++n) {
      if (choice >> n & 1) views.insert(n);
    }
    const ConcatBuffers slots = slots_of(flow.graph, views);
    // What is written by its own writer: results of views are made of their parts.
    std::vector<std::pair<BufferPart, std::int64_t>> written;
    for (const auto& [key, part] : slots.of_value) {
      const Value& value = flow.graph.values[key.first];
      if (!slots.buffer_of.contains(value.producer)) written.emplace_back(part, value.sizes[1]);
      EXPECT_LE((part.channel + value.sizes[1]) / 16, slots.buffers[part.buffer][1]);
    }
    for (std::size_t i = 0; i < written.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const auto& [p, size_p] = written[i];
        const auto& [q, size_q] = written[j];
        EXPECT_TRUE(p.buffer != q.buffer || p.channel >= q.channel + size_q ||
                    q.channel >= p.channel + size_p)
            << "choice " << choice;
      }
    }
  }
}

}  // namespace
}  // namespace torchalgo
