// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "simplify/rewrite_each.h"
#include "simplify/size_branches.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

bool is_channels(std::optional<std::int64_t> dim) { return dim == 1 || dim == -3; }

bool swaps_groups(Node node) {
  if (!node.is("aten::transpose")) return is_permute(node, {0, 2, 1, 3, 4});
  const auto a = constant_int(node.input(1)), b = constant_int(node.input(2));
  return a && b && std::min(*a, *b) == 1 && std::max(*a, *b) == 2;
}

// Returns true for the permute of [n, c, f, f, h, w] to [n, c, h, f, w, f].
bool interleaves_pixels(Node node) { return is_permute(node, {0, 1, 4, 2, 5, 3}); }

// Returns true if the number is always `factor` times the size of a dimension of `src`.
bool is_multiple_of(Value number, Value src, std::int64_t dim, std::int64_t factor) {
  if (factor == 1) return dimension_of(number, src) == dim;
  while (number.node().is("aten::Int", "prim::NumToTensor")) number = number.node().input(0);
  const Node product = number.node();
  if (!product.is("aten::mul")) return false;
  const auto is_product = [&](std::size_t size, std::size_t by) {
    return dimension_of(product.input(size), src) == dim &&
           constant_scalar(product.input(by)) == static_cast<double>(factor);
  };
  return is_product(0, 1) || is_product(1, 0);
}

struct Shuffle : GraphPart {
  const char* op;
  std::int64_t groups;  // or the factor of a pixel shuffle
  bool is_pinned;       // it is one for the seen height and width only
};

class ChannelOps {
 public:
  ChannelOps(const Graph& graph, SeenTensors seen) : graph_(graph), seen_(std::move(seen)) {}

  bool simplify() {
    for (Node node : graph_.nodes()) take_whole(node);
    is_changed_ |= replace_each(
        graph_, [&](Node node) { return match_shuffle(node); },
        [&](const Shuffle& found, const script::Builder& at) { return name_shuffle(found, at); });
    for (Node node : graph_.nodes()) cut(node);
    if (!parts_.empty()) {
      for (Node node : graph_.nodes()) join_parts(node);
    }
    if (is_changed_) graph_.remove_dead_code();
    return is_changed_;
  }

 private:
  struct Part {
    Value whole;
    std::int64_t begin, end, channels;  // of the whole
  };

  [[nodiscard]] const Sizes* sizes_seen(Value value) const {
    const auto it = seen_.find(value);
    return it != seen_.end() && it->second.is_always_so ? &it->second.sizes : nullptr;
  }

  void replace(Node node, Value by) {
    node.output().replace_uses(by);
    is_changed_ = true;
  }

  // Removes slices that take everything: x[:, a:b] begins with x[:]. torch.export has aliases
  // there.
  void take_whole(Node node) {
    if (is_whole_slice(node) || node.is("aten::alias")) replace(node, node.input(0));
  }

  // Returns the shuffle of channels or of pixels that ends with `last`. Its sizes must follow from
  // those of the source for every input, not only for the example. Or they are constants, perhaps
  // but for the batch, as in graphs of torch.export: then the program fails for other sizes. If the
  // batch is -1, images of other sizes count as more or fewer images, so the sizes must be pinned.
  // So must those of a pixel shuffle, whose constants fit images of another shape too.
  [[nodiscard]] std::optional<Shuffle> match_shuffle(Node last) const {
    if (!is_view(last)) return std::nullopt;
    Node swap = last.input(0).node();
    if (swap.is("aten::contiguous", "aten::clone")) swap = swap.input(0).node();
    const bool is_of_pixels = interleaves_pixels(swap);
    if (!is_of_pixels && !swaps_groups(swap)) return std::nullopt;
    Node first = swap.input(0).node();
    if (!is_view(first)) return std::nullopt;
    Value src = first.input(0);
    const Sizes *sizes = sizes_seen(src), *split = sizes_seen(first.output()),
                *back = sizes_seen(last.output());
    if (sizes == nullptr || split == nullptr || back == nullptr) return std::nullopt;
    if (sizes->size() != 4 || split->size() != (is_of_pixels ? 6 : 5)) return std::nullopt;
    const std::int64_t n = (*sizes)[0], h = (*sizes)[2], w = (*sizes)[3];
    const std::int64_t groups = (*split)[is_of_pixels ? 2 : 1];
    if (groups < 2) return std::nullopt;
    const std::int64_t parts = is_of_pixels ? groups * groups : groups, each = (*sizes)[1] / parts;
    const std::int64_t factor = is_of_pixels ? groups : 1;
    const Sizes divided =
        is_of_pixels ? Sizes{n, each, groups, groups, h, w} : Sizes{n, groups, each, h, w};
    const Sizes joined = {n, (*sizes)[1] / (factor * factor), h * factor, w * factor};
    if (*split != divided || *back != joined) return std::nullopt;
    if (!is_of_pixels && each < 2) return std::nullopt;
    const bool is_constant = asks_for(first, divided, src) && asks_for(last, joined, src);
    if (!is_constant && !(splits(first, src, divided) && joins(last, src, factor))) {
      return std::nullopt;
    }
    const auto leaves_batch_open = [](Node view) {
      const auto numbers = constant_ints(view.input(1));
      return numbers && numbers->front() == -1;
    };
    const bool is_pinned = leaves_batch_open(first) || leaves_batch_open(last);
    return Shuffle{{last, {src}},
                   is_of_pixels ? "aten::pixel_shuffle" : "aten::channel_shuffle",
                   groups,
                   is_pinned || (is_of_pixels && is_constant)};
  }

  // Returns true if `view` asks for `sizes` by constants. One of them may be -1, or the batch may
  // be read from `src`.
  [[nodiscard]] static bool asks_for(Node view, const Sizes& sizes, Value src) {
    if (const auto numbers = constant_ints(view.input(1))) {
      const auto fits = [](std::int64_t number, std::int64_t size) {
        return number == size || number == -1;
      };
      return std::equal(numbers->begin(), numbers->end(), sizes.begin(), sizes.end(), fits);
    }
    const std::vector<Value> numbers = sizes_of_view(view);
    if (numbers.size() != sizes.size() || dimension_of(numbers[0], src) != 0) return false;
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      if (constant_int(numbers[i]) != sizes[i]) return false;
    }
    return true;
  }

  // Returns true if `view` divides the channels of `src`, and nothing else. All sizes are given but
  // one of them, which the number of elements proves.
  [[nodiscard]] static bool splits(Node view, Value src, const Sizes& divided) {
    const std::vector<Value> numbers = sizes_of_view(view);
    const std::size_t rank = divided.size();
    if (numbers.size() != rank || dimension_of(numbers[0], src) != 0 ||
        dimension_of(numbers[rank - 2], src) != 2 || dimension_of(numbers[rank - 1], src) != 3) {
      return false;
    }
    int open = 0;
    for (std::size_t i = 1; i < rank - 2; ++i) open += constant_int(numbers[i]) != divided[i];
    return open <= 1;
  }

  // Returns true if `view` makes [n, ?, h * factor, w * factor] of `src`, [n, c, h, w].
  [[nodiscard]] static bool joins(Node view, Value src, std::int64_t factor) {
    if (factor == 1 && is_shape_of(view.input(1), src)) return true;
    const std::vector<Value> four = sizes_of_view(view);
    return four.size() == 4 && dimension_of(four[0], src) == 0 &&
           is_multiple_of(four[2], src, 2, factor) && is_multiple_of(four[3], src, 3, factor);
  }

  Value name_shuffle(const Shuffle& shuffle, const script::Builder& at) {
    const Value src = shuffle.reads[0];
    if (shuffle.is_pinned) {
      const Sizes sizes = *sizes_seen(src);
      for (const std::int64_t dim : {2, 3}) pin_size(src, dim, sizes[dim], shuffle.last);
    }
    const Value made = at.call(shuffle.op, {src, shuffle.groups});
    seen_[made] = seen_.at(shuffle.last.output());
    return made;
  }

  // Returns the channels of each part. Returns none if `node` is not a chunk or split of channels.
  [[nodiscard]] static Sizes parts_of(Node node, std::int64_t channels) {
    const bool is_chunk = node.is("aten::chunk");
    const bool is_split = node.is("aten::split", "aten::split_with_sizes");
    if ((!is_chunk && !is_split) || node.input_count() != 3) return {};
    if (!is_channels(constant_int(node.input(2)))) return {};
    if (const auto number = constant_int(node.input(1))) {
      if (*number < 1) return {};
      const std::int64_t each = is_chunk ? (channels + *number - 1) / *number : *number;
      Sizes parts(static_cast<std::size_t>(channels / each), each);
      if (channels % each != 0) parts.push_back(channels % each);
      return parts;
    }
    const auto sizes = constant_ints(node.input(1));
    if (!sizes || std::accumulate(sizes->begin(), sizes->end(), std::int64_t{0}) != channels)
      return {};
    return *sizes;
  }

  // Returns true if nothing writes to `value`. The parts of a chunk are views, so they must stay if
  // one of them is written to.
  [[nodiscard]] bool is_never_written(Value value) {
    if (!writes_) writes_.emplace(graph_);
    return !writes_->has(value);
  }

  void cut(Node node) {
    if (node.inputs().empty() || !is_tensor(node.input(0))) return;
    Value whole = node.input(0);
    const auto seen = seen_.find(whole);
    const TensorInfo info = describe(seen == seen_.end() ? nullptr : &seen->second);
    if (!info.obstacle.empty() || info.sizes.size() != 4) return;
    const std::int64_t channels = info.sizes[1];
    const Sizes parts = parts_of(node, channels);
    if (parts.empty() || std::count(parts.begin(), parts.end(), 0) > 0) return;
    const auto& uses = node.output().uses();
    if (uses.size() != 1 || !uses[0].user.is("prim::ListUnpack")) return;
    Node unpack = uses[0].user;
    if (unpack.output_count() != parts.size() || !is_never_written(whole)) return;
    const script::Builder at(node);
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Value part = at.call("aten::narrow", {whole, std::int64_t{1}, begin, parts[i]});
      unpack.output(i).replace_uses(part);
      parts_[part] = {whole, begin, begin + parts[i], channels};
      begin += parts[i];
    }
    is_changed_ = true;
  }

  // Replaces all parts of a tensor by the tensor: cat([a, b, c]) of a, b = chunk(x) is cat([x, c]).
  void join_parts(Node cat) {
    if (!cat.is("aten::cat") || !is_fixed_list(cat.input(0))) return;
    if (!is_channels(constant_int(cat.input(1)))) return;
    const auto items = cat.input(0).node().inputs();
    std::vector<Value> joined;
    for (std::size_t i = 0; i < items.size();) {
      const std::size_t count = whole_at(items, i);
      joined.push_back(count > 0 ? parts_.at(items[i]).whole : items[i]);
      i += std::max<std::size_t>(count, 1);
    }
    if (joined.size() == items.size()) return;
    cat.replace_input(0, script::Builder(cat).tensors(joined));
  }

  // Returns how many items from `first` on are all parts of one tensor in order, or 0 if they are
  // not.
  [[nodiscard]] std::size_t whole_at(const std::vector<Value>& items, std::size_t first) const {
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

  const Graph& graph_;
  SeenTensors seen_;
  std::optional<script::Writes> writes_;  // as before the first change, which adds no writers
  std::map<Value, Part> parts_;
  bool is_changed_ = false;
};

}  // namespace

bool simplify_channel_ops(const Graph& graph, const SeenTensors& seen) {
  return ChannelOps(graph, seen).simplify();
}

}  // namespace torchalgo
