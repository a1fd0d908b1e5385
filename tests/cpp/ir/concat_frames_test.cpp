// SPDX-License-Identifier: BSD-3-Clause
#include "ir/concat_frames.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/concat_flow.h"

namespace torchalgo {
namespace {

constexpr Layout kLayout = Layout::kNChw16c;

using Place = std::optional<FramePlace>;

TEST(ConcatFrames, PutsTheInputsOneBehindTheOtherAndTheLastMayBeRagged) {
  Flow flow;
  const int a = flow.value(32), b = flow.value(48), c = flow.value(20);
  flow.concat({a, b, c});
  const ConcatFrames frames = concat_frames(flow.graph, kLayout);
  EXPECT_EQ(frames.of_concat[0], (Place{{0, 0}}));
  EXPECT_EQ(frames.of_value[a], (Place{{0, 0}}));
  EXPECT_EQ(frames.of_value[b], (Place{{0, 32}}));
  EXPECT_EQ(frames.of_value[c], (Place{{0, 80}}));
}

TEST(ConcatFrames, ADenseBlockIsPrefixesOfItsLargestConcatenation) {
  Flow flow;
  std::vector<int> parts = {flow.value(64)};
  for (int i = 0; i < 5; ++i) {
    parts.push_back(flow.value(32));
    flow.concat(parts);
  }
  const ConcatFrames frames = concat_frames(flow.graph, kLayout);
  for (int node = 0; node < 5; ++node) EXPECT_EQ(frames.of_concat[node], (Place{{4, 0}})) << node;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int64_t channel = i == 0 ? 0 : 32 + 32 * static_cast<std::int64_t>(i);
    EXPECT_EQ(frames.of_value[parts[i]], (Place{{4, channel}}));
  }
}

TEST(ConcatFrames, AResultThatALargerOneReadsHasItsFrameThere) {
  Flow flow;
  const int a = flow.value(32), b = flow.value(32), c = flow.value(32);
  const int inner = flow.concat({a, b});
  flow.concat({inner, c});
  const ConcatFrames frames = concat_frames(flow.graph, kLayout);
  EXPECT_EQ(frames.of_value[a], (Place{{0, 0}}));
  EXPECT_EQ(frames.of_value[inner], (Place{{1, 0}}));
  EXPECT_EQ(frames.of_value[c], (Place{{1, 64}}));
  EXPECT_EQ(frames.of_concat[0], (Place{{0, 0}}));
  EXPECT_EQ(frames.of_concat[1], (Place{{1, 0}}));
}

TEST(ConcatFrames, APartFromTheMiddleIsARangeAndAnotherOrderIsNone) {
  Flow flow;
  const int a = flow.value(32), b = flow.value(32), c = flow.value(32), d = flow.value(32);
  flow.concat({a, b, c, d});
  flow.concat({b, c});
  flow.concat({c, b});
  flow.concat({a, c});
  const ConcatFrames frames = concat_frames(flow.graph, kLayout);
  EXPECT_EQ(frames.of_concat[1], (Place{{0, 32}}));
  EXPECT_FALSE(frames.of_concat[2]);
  EXPECT_FALSE(frames.of_concat[3]);
}

TEST(ConcatFrames, OfTwoThatWantAValueElsewhereTheLaterGetsIt) {
  Flow flow;
  const int a = flow.value(32), b = flow.value(32), c = flow.value(32);
  flow.concat({a, b});
  flow.concat({c, a});
  const ConcatFrames frames = concat_frames(flow.graph, kLayout);
  EXPECT_FALSE(frames.of_concat[0]);
  EXPECT_TRUE(frames.of_concat[1]);
  EXPECT_FALSE(frames.of_value[b]);
}

TEST(ConcatFrames, LeavesOutWhatCannotLieSideBySide) {
  const auto is_view = [](std::vector<std::int64_t> c, std::int64_t n = 1, std::int64_t h = 4) {
    Flow flow;
    flow.n = n, flow.h = h;
    std::vector<int> parts;
    for (const std::int64_t channels : c) parts.push_back(flow.value(channels));
    flow.concat(parts);
    return concat_frames(flow.graph, kLayout).of_concat[0].has_value();
  };
  EXPECT_TRUE(is_view({32, 32}));
  EXPECT_FALSE(is_view({24, 32}));        // two writers would meet in a block
  EXPECT_FALSE(is_view({32, 32}, 2));     // a slice of each image is not one piece
  EXPECT_FALSE(is_view({32, 32}, 1, 1));  // a relabelled nchw tensor lies elsewhere
  EXPECT_FALSE(is_view({16, 32}));        // so does a relabelled nhwc one
  EXPECT_TRUE(is_view({20}));
  Flow flow;
  const int twice = flow.value(32);
  flow.concat({twice, twice});
  EXPECT_FALSE(concat_frames(flow.graph, kLayout).of_concat[0]);
  Flow line;
  const int a = line.value(32), b = line.value(32);
  line.graph.values[a].sizes = {1, 32, 4};
  line.concat({a, b});
  EXPECT_FALSE(concat_frames(line.graph, kLayout).of_concat[0]);
}

// Whatever the graph: each view's inputs lie in one frame, one behind the other, and every other
// value with a place in a frame is disjoint from them or one of them.
TEST(ConcatFrames, NeverPutsTwoValuesInOnePlaceOnRandomGraphs) {
  std::mt19937_64 random(5);
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  int views = 0;
  for (int round = 0; round < 300; ++round) {
    Flow flow;
    for (int i = 0; i < 4; ++i) flow.value(32 + 16 * below(2) + (below(5) == 0 ? 5 : 0));
    for (int i = 0; i < 6; ++i) {
      std::vector<int> parts;
      const int first = below(static_cast<int>(flow.graph.values.size()));
      for (int k = 0; k < 1 + below(4); ++k) {
        const int any = below(static_cast<int>(flow.graph.values.size()));
        parts.push_back(below(2) ? (first + k) % static_cast<int>(flow.graph.values.size()) : any);
      }
      flow.concat(parts);
      if (below(3) == 0) flow.value(32);
    }
    const ConcatFrames frames = concat_frames(flow.graph, kLayout);
    for (std::size_t n = 0; n < flow.graph.nodes.size(); ++n) {
      if (!frames.of_concat[n]) continue;
      ++views;
      FramePlace next = *frames.of_concat[n];
      for (const int input : flow.graph.nodes[n].inputs) {
        EXPECT_EQ(frames.of_value[input], Place(next));
        next.channel += flow.graph.values[input].sizes[1];
      }
    }
    for (std::size_t v = 0; v < flow.graph.values.size(); ++v) {
      for (std::size_t w = 0; w < v; ++w) {
        const Place a = frames.of_value[v], b = frames.of_value[w];
        if (!a || !b || a->frame != b->frame) continue;
        EXPECT_EQ(a->channel % 16, 0);
        EXPECT_TRUE(a->channel >= b->channel + flow.graph.values[w].sizes[1] ||
                    b->channel >= a->channel + flow.graph.values[v].sizes[1]);
      }
    }
  }
  EXPECT_GT(views, 100);
}

}  // namespace
}  // namespace torchalgo
