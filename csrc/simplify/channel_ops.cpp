// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/channel_ops.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "simplify/size_branches.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using torch::jit::AliasDb;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

using Sizes = std::vector<std::int64_t>;

bool is_channels(std::optional<std::int64_t> dim) { return dim == 1 || dim == -3; }

bool swaps_groups(const Node* node) {
  if (is_kind(node, "aten::permute")) {
    return constant_ints(node->input(1)) == Sizes{0, 2, 1, 3, 4};
  }
  if (!is_kind(node, "aten::transpose")) return false;
  const auto a = constant_int(node->input(1)), b = constant_int(node->input(2));
  return a && b && std::min(*a, *b) == 1 && std::max(*a, *b) == 2;
}

struct Shuffle {
  Value* src;
  std::int64_t groups;
  bool is_pinned;  // it is one for the seen height and width only
};

class ChannelOps {
 public:
  ChannelOps(std::shared_ptr<Graph>& graph, SeenTensors seen)
      : graph_(graph), seen_(std::move(seen)) {}

  bool simplify() {
    for (Node* node : all_nodes()) take_whole(node);
    for (Node* node : all_nodes()) name_shuffle(node);
    for (Node* node : all_nodes()) cut(node);
    if (!parts_.empty()) {
      for (Node* node : all_nodes()) join_parts(node);
    }
    if (is_changed_) torch::jit::EliminateDeadCode(graph_);
    return is_changed_;
  }

 private:
  struct Part {
    Value* whole;
    std::int64_t begin, end, channels;  // of the whole
  };

  // Returns the top-level nodes. Nodes of inner blocks are never planned, so they stay as they are.
  [[nodiscard]] std::vector<Node*> all_nodes() const {
    return {graph_->nodes().begin(), graph_->nodes().end()};
  }

  [[nodiscard]] const Sizes* sizes_seen(const Value* value) const {
    const auto it = seen_.find(value);
    return it != seen_.end() && it->second.is_always_so ? &it->second.sizes : nullptr;
  }

  void replace(Node* node, Value* by) {
    node->output()->replaceAllUsesWith(by);
    is_changed_ = true;
  }

  // Removes slices that take everything: x[:, a:b] begins with x[:]. torch.export has aliases
  // there.
  void take_whole(Node* node) {
    if (is_whole_slice(node) || is_kind(node, "aten::alias")) replace(node, node->input(0));
  }

  // Returns the shuffle that ends with `last`. Its sizes must be those of the source for every
  // input, not only for the example. Or they are constants, perhaps but for the batch, as in graphs
  // of torch.export: then the program fails for other sizes. If the batch is -1, images of other
  // sizes count as more or fewer images, so the sizes must be pinned.
  [[nodiscard]] std::optional<Shuffle> match_shuffle(const Node* last) const {
    if (!is_view(last)) return std::nullopt;
    const Node* swap = last->input(0)->node();
    if (is_kind(swap, "aten::contiguous")) swap = swap->input(0)->node();
    if (!swaps_groups(swap)) return std::nullopt;
    const Node* first = swap->input(0)->node();
    if (!is_view(first)) return std::nullopt;
    Value* src = const_cast<Value*>(first->input(0));
    const Sizes *sizes = sizes_seen(src), *split = sizes_seen(first->output()),
                *back = sizes_seen(last->output());
    if (sizes == nullptr || split == nullptr || back == nullptr) return std::nullopt;
    if (sizes->size() != 4 || split->size() != 5 || *back != *sizes) return std::nullopt;
    const std::int64_t groups = (*split)[1];
    const Sizes expected = {(*sizes)[0], groups, (*sizes)[1] / groups, (*sizes)[2], (*sizes)[3]};
    if (groups < 2 || (*split)[2] < 2 || *split != expected) return std::nullopt;
    const bool is_constant = asks_for(first, expected, src) && asks_for(last, *sizes, src);
    if (!is_constant && !(splits(first, src, groups) && restores_sizes(last, src))) {
      return std::nullopt;
    }
    const auto leaves_batch_open = [](const Node* view) {
      const auto numbers = constant_ints(view->input(1));
      return numbers && numbers->front() == -1;
    };
    const bool is_pinned = leaves_batch_open(first) || leaves_batch_open(last);
    return Shuffle{src, groups, is_pinned};
  }

  // Returns true if `view` asks for `sizes` by constants. The batch may also be -1, or be read from
  // `src`.
  [[nodiscard]] static bool asks_for(const Node* view, const Sizes& sizes, const Value* src) {
    if (auto numbers = constant_ints(view->input(1))) {
      if (!numbers->empty() && numbers->front() == -1) numbers->front() = sizes.front();
      return *numbers == sizes;
    }
    const std::vector<const Value*> numbers = sizes_of_view(view);
    if (numbers.size() != sizes.size() || dimension_of(numbers[0], src) != 0) return false;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      if (constant_int(numbers[i]) != sizes[i]) return false;
    }
    return true;
  }

  [[nodiscard]] static bool splits(const Node* view, const Value* src, std::int64_t groups) {
    const std::vector<const Value*> five = sizes_of_view(view);
    return five.size() == 5 && constant_int(five[1]) == groups && dimension_of(five[0], src) == 0 &&
           dimension_of(five[3], src) == 2 && dimension_of(five[4], src) == 3;
  }

  [[nodiscard]] static bool restores_sizes(const Node* view, const Value* src) {
    if (is_shape_of(view->input(1), src)) return true;
    const std::vector<const Value*> four = sizes_of_view(view);
    return four.size() == 4 && dimension_of(four[0], src) == 0 && dimension_of(four[2], src) == 2 &&
           dimension_of(four[3], src) == 3;
  }

  void name_shuffle(Node* node) {
    const std::optional<Shuffle> shuffle = match_shuffle(node);
    if (!shuffle || !is_never_written(shuffle->src) || !is_never_written(node->output())) return;
    if (shuffle->is_pinned) {
      const Sizes sizes = *sizes_seen(shuffle->src);
      for (const std::int64_t dim : {2, 3}) pin_size(shuffle->src, dim, sizes[dim], node);
    }
    const WithInsertPoint at(node);
    Value* made = graph_->insert(c10::Symbol::fromQualString("aten::channel_shuffle"),
                                 {shuffle->src, graph_->insertConstant(shuffle->groups)});
    made->node()->copyMetadata(node);
    seen_[made] = seen_.at(node->output());
    replace(node, made);
  }

  // Returns the channels of each part. Returns none if `node` is not a chunk or split of channels.
  [[nodiscard]] static Sizes parts_of(const Node* node, std::int64_t channels) {
    const bool is_chunk = is_kind(node, "aten::chunk");
    const bool is_split = is_kind(node, "aten::split") || is_kind(node, "aten::split_with_sizes");
    if ((!is_chunk && !is_split) || node->inputs().size() != 3) return {};
    if (!is_channels(constant_int(node->input(2)))) return {};
    if (const auto number = constant_int(node->input(1))) {
      if (*number < 1) return {};
      const std::int64_t each = is_chunk ? (channels + *number - 1) / *number : *number;
      Sizes parts(static_cast<std::size_t>(channels / each), each);
      if (channels % each != 0) parts.push_back(channels % each);
      return parts;
    }
    const auto sizes = constant_ints(node->input(1));
    if (!sizes || std::accumulate(sizes->begin(), sizes->end(), std::int64_t{0}) != channels)
      return {};
    return *sizes;
  }

  // Returns true if nothing writes to `value`. The parts of a chunk are views, so they must stay if
  // one of them is written to.
  [[nodiscard]] bool is_never_written(const Value* value) {
    if (!aliases_) aliases_.emplace(graph_);
    return !aliases_->hasWriters(const_cast<Value*>(value));
  }

  void cut(Node* node) {
    if (node->inputs().empty() || !is_tensor(node->input(0))) return;
    Value* whole = node->input(0);
    const auto seen = seen_.find(whole);
    const TensorInfo info = describe(seen == seen_.end() ? nullptr : &seen->second);
    if (!info.obstacle.empty() || info.sizes.size() != 4) return;
    const std::int64_t channels = info.sizes[1];
    const Sizes parts = parts_of(node, channels);
    if (parts.empty() || std::count(parts.begin(), parts.end(), 0) > 0) return;
    const auto& uses = node->output()->uses();
    if (uses.size() != 1 || !is_kind(uses[0].user, "prim::ListUnpack")) return;
    Node* unpack = uses[0].user;
    if (unpack->outputs().size() != parts.size() || !is_never_written(whole)) return;
    const WithInsertPoint at(node);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Value* part = graph_->insert(c10::Symbol::fromQualString("aten::narrow"),
                                   {whole, graph_->insertConstant(1), graph_->insertConstant(begin),
                                    graph_->insertConstant(parts[i])});
      part->node()->copyMetadata(node);
      unpack->output(i)->replaceAllUsesWith(part);
      parts_[part] = {whole, begin, begin + parts[i], channels};
      begin += parts[i];
    }
    is_changed_ = true;
  }

  // Replaces all parts of a tensor by the tensor: cat([a, b, c]) of a, b = chunk(x) is cat([x, c]).
  void join_parts(Node* cat) {
    if (!is_kind(cat, "aten::cat") || !is_fixed_list(cat->input(0))) return;
    if (!is_channels(constant_int(cat->input(1)))) return;
    const auto items = cat->input(0)->node()->inputs();
    std::vector<Value*> joined;
    for (std::size_t i = 0; i < items.size();) {
      const std::size_t count = whole_at(items, i);
      joined.push_back(count > 0 ? parts_.at(items[i]).whole : items[i]);
      i += std::max<std::size_t>(count, 1);
    }
    if (joined.size() == items.size()) return;
    const WithInsertPoint at(cat);
    Node* list = graph_->insertNode(graph_->createList(c10::TensorType::get(), joined));
    cat->replaceInput(0, list->output());
  }

  // Returns how many items from `first` on are all parts of one tensor in order, or 0 if they are
  // not.
  [[nodiscard]] std::size_t whole_at(at::ArrayRef<Value*> items, std::size_t first) const {
    std::int64_t next = 0;
    for (std::size_t i = first; i < items.size(); ++i) {
      const auto part = parts_.find(items[i]);
      if (part == parts_.end() || part->second.begin != next) return 0;
      if (part->second.whole != parts_.at(items[first]).whole) return 0;
      next = part->second.end;
      if (next == part->second.channels) return i - first + 1;
    }
    return 0;
  }

  std::shared_ptr<Graph>& graph_;
  SeenTensors seen_;
  std::optional<AliasDb> aliases_;  // as before the first change, which adds no writers
  std::map<const Value*, Part> parts_;
  bool is_changed_ = false;
};

}  // namespace

bool simplify_channel_ops(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  return ChannelOps(graph, seen).simplify();
}

}  // namespace torchalgo
