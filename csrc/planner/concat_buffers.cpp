// SPDX-License-Identifier: BSD-3-Clause
#include "planner/concat_buffers.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "ir/concat_frames.h"
#include "ir/view.h"

namespace torchalgo {
namespace {

const ConcatProblem& concat_at(const Graph& graph, int node) {
  return std::get<ConcatProblem>(*graph.nodes[node].problem);
}

// Assigns the slots of one layout.
class Placer {
 public:
  Placer(const Graph& graph, const FittedPlan& plan, Layout layout, ConcatBuffers& slots)
      : graph_(graph), layout_(layout), frames_(concat_frames(graph, layout)), slots_(slots) {
    for (std::size_t node = 0; node < plan.call_at.size(); ++node) {
      const auto& call = plan.call_at[node];
      if (!call || call->primitive.name != kViewConcat || call->primitive.dst != layout) continue;
      if (frames_.of_concat[node]) use(static_cast<int>(node));
    }
  }

  void place() {
    for (const int value : written_) {
      slots_.of_value[{value, layout_}] = locate(*frames_.of_value[value]);
    }
    for (const int node : used_) slots_.buffer_of[node] = locate(*frames_.of_concat[node]).buffer;
  }

 private:
  struct Range {
    std::int64_t begin, end;  // channels
  };

  void use(int node) {
    used_.insert(node);
    written_.insert(graph_.nodes[node].inputs.begin(), graph_.nodes[node].inputs.end());
    const std::vector<std::int64_t>& c = concat_at(graph_, node).c;
    const FramePlace place = *frames_.of_concat[node];
    const Range range = {place.channel, std::accumulate(c.begin(), c.end(), place.channel)};
    const auto [it, is_new] = read_.try_emplace(place.frame, range);
    it->second.begin = std::min(it->second.begin, range.begin);
    it->second.end = std::max(it->second.end, range.end);
  }

  [[nodiscard]] BufferPart locate(FramePlace place) {
    const int result = graph_.nodes[place.frame].outputs[0];
    if (used_.contains(place.frame) && written_.contains(result)) {
      const FramePlace& outer = *frames_.of_value[result];
      return locate({outer.frame, outer.channel + place.channel});
    }
    const Range& range = read_.at(place.frame);
    const auto [it, is_new] =
        buffers_.try_emplace(place.frame, static_cast<int>(slots_.buffers.size()));
    if (is_new) {
      const ConcatProblem& concat = concat_at(graph_, place.frame);
      const std::int64_t block = block_size(layout_);
      slots_.buffers.push_back(
          {1, (range.end - range.begin + block - 1) / block, concat.h, concat.w, block});
    }
    return {it->second, place.channel - range.begin};
  }

  const Graph& graph_;
  const Layout layout_;
  const ConcatFrames frames_;
  ConcatBuffers& slots_;
  std::set<int> used_;          // nodes that are a view.concat of this layout
  std::set<int> written_;       // values that these nodes read
  std::map<int, Range> read_;   // by frame: the channels that these nodes read
  std::map<int, int> buffers_;  // by frame that lies in no other one
};

}  // namespace

ConcatBuffers concat_buffers(const Graph& graph, const FittedPlan& plan) {
  ConcatBuffers slots;
  for (const Layout layout : kAllLayouts) {
    if (is_blocked(layout)) Placer(graph, plan, layout, slots).place();
  }
  return slots;
}

}  // namespace torchalgo
