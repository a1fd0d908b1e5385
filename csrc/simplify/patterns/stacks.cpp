// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "simplify/patterns/vector_images.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;
using Sizes = ShapeProofs::Sizes;

namespace {

constexpr std::int64_t kMostParts = 8;

class Stacks {
 public:
  Stacks(const Graph& graph, const SeenTensors& seen) : graph_(graph), vectors_(graph, seen) {}

  bool take_apart() {
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) {
      if (node.inputs().empty() || !is_tensor(node.input(0))) continue;
      if (node.is("aten::sum")) take_sum(node);
      if (node.is("aten::select")) take_select(node);
      if (node.is("aten::unbind")) take_unbind(node);
    }
    graph_.remove_dead_code();
    return is_changed_;
  }

 private:
  using Parts = std::vector<Value>;

  void replace(Value old, Value by) {
    vectors_.note_same(by, old);
    old.replace_uses(by);
    is_changed_ = true;
  }

  [[nodiscard]] std::optional<std::int64_t> rank_of(Value value) const {
    const Sizes* sizes = vectors_.proofs().sizes_seen(value);
    return sizes != nullptr ? std::optional(std::ssize(*sizes)) : std::nullopt;
  }

  // Returns the images of which `stack` consists along its dimension `dim`. Returns none if it is
  // not a known stack.
  const Parts& parts_of(Value stack, std::int64_t dim) {
    const auto key = std::pair(stack, dim);
    if (const auto known = parts_.find(key); known != parts_.end()) return known->second;
    Parts parts = vectors_.is_never_written(stack) ? find_parts(stack, dim) : Parts{};
    return parts_[key] = std::move(parts);
  }

  Parts find_parts(Value stack, std::int64_t dim) {
    const Node node = stack.node();
    const Sizes* sizes = vectors_.proofs().sizes_seen(stack);
    if (sizes == nullptr || dim >= std::ssize(*sizes) || node.inputs().empty()) return {};
    if (!vectors_.proofs().is_floating(stack)) return {};
    if (node.is("aten::stack")) return parts_of_list(node, dim);
    if (node.is("aten::cat")) return parts_of_cat(node, dim);
    if (sizes->size() != 5 || (*sizes)[dim] < 1 || (*sizes)[dim] > kMostParts) return {};
    const bool adds_dims = is_reshape(node) || node.is("aten::unsqueeze");
    if (adds_dims && dim == 1) return parts_of_view(node);
    if (node.is("aten::mul")) return parts_of_product(node, dim);
    if (node.is("aten::softmax")) return parts_of_softmax(node, dim);
    if (!is_elementwise(node)) return {};
    Parts parts = parts_of(node.input(0), dim);
    for (Value& part : parts) part = vectors_.insert_like(node, part);
    return parts;
  }

  Parts parts_of_list(Node stack, std::int64_t dim) {
    const auto rank = rank_of(stack.output());
    if (!is_fixed_list(stack.input(0)) || dim_argument(stack, "dim", *rank) != dim) return {};
    Parts parts;
    for (Value item : stack.input(0).node().inputs()) {
      if (!is_part(item, stack.output())) return {};
      parts.push_back(item);
    }
    return parts;
  }

  [[nodiscard]] bool is_part(Value item, Value stack) const {
    return vectors_.is_never_written(item) && rank_of(item) &&
           vectors_.proofs().have_same_type(item, stack);
  }

  // Reads cat([a.unsqueeze(dim), stack], dim).
  Parts parts_of_cat(Node cat, std::int64_t dim) {
    const auto rank = rank_of(cat.output());
    if (!is_fixed_list(cat.input(0)) || dim_argument(cat, "dim", *rank) != dim) return {};
    Parts parts;
    for (Value item : cat.input(0).node().inputs()) {
      const Parts some = parts_of_item(item, dim, *rank);
      if (some.empty() || !is_part(some[0], cat.output())) return {};
      parts.insert(parts.end(), some.begin(), some.end());
    }
    return parts;
  }

  Parts parts_of_item(Value item, std::int64_t dim, std::int64_t rank) {
    const Node node = item.node();
    const bool is_one = node.is("aten::unsqueeze") && dim_argument(node, "dim", rank) == dim;
    if (!is_one) return parts_of(item, dim);
    const Value image = node.input(0);
    const bool is_known = vectors_.is_never_written(image) && rank_of(image);
    return is_known ? Parts{image} : Parts{};
  }

  // Returns the tensor [n, parts * c, h, w] of which `stack`, [n, parts, c, h, w], is another
  // shape.
  Value joined(Value stack) {
    const Node node = stack.node();
    if (is_reshape(node) && vectors_.proofs().splits_channels(node) &&
        vectors_.is_never_written(node.input(0))) {
      return node.input(0);
    }
    const Sizes& sizes = *vectors_.proofs().sizes_seen(stack);
    return sizes[3] == 1 && sizes[4] == 1 ? vectors_.as_image(stack) : nullptr;
  }

  Parts split(Value whole, std::int64_t count, Node before) {
    const std::int64_t each = (*vectors_.proofs().sizes_seen(whole))[1] / count;
    Parts parts;
    for (std::int64_t i = 0; i < count; ++i) {
      parts.push_back(vectors_.channels(whole, i * each, each, before));
    }
    return parts;
  }

  Parts parts_of_view(Node view) {
    const Value whole = joined(view.output());
    if (whole == nullptr) return {};
    return split(whole, (*vectors_.proofs().sizes_seen(view.output()))[1], view);
  }

  Parts parts_of_product(Node mul, std::int64_t dim) {
    if (rank_of(mul.input(0)) != 5 || rank_of(mul.input(1)) != 5) return {};
    const Parts a = parts_of(mul.input(0), dim), b = parts_of(mul.input(1), dim);
    if (a.empty() || a.size() != b.size()) return {};
    Sizes sizes = *vectors_.proofs().sizes_seen(mul.output());
    sizes.erase(sizes.begin() + dim);
    Parts parts;
    for (std::size_t i = 0; i < a.size(); ++i) {
      parts.push_back(vectors_.insert("aten::mul", {a[i], b[i]}, mul, mul.output(), sizes));
    }
    return parts;
  }

  Parts parts_of_softmax(Node softmax, std::int64_t dim) {
    if (dim_argument(softmax, "dim", 5) != dim) return {};
    const Value logits = softmax.input(0);
    const auto count = (*vectors_.proofs().sizes_seen(logits))[dim];
    if (count == 2 && is_none(softmax.input(2))) {
      const Value whole = softmax_of_pair(logits, dim);
      if (whole != nullptr) return split(whole, 2, softmax);
    }
    if (parts_of(logits, dim).empty()) return {};
    Sizes sizes = *vectors_.proofs().sizes_seen(logits);
    sizes.erase(sizes.begin() + dim);
    Parts parts;
    for (std::int64_t i = 0; i < count; ++i) {
      const Value part = vectors_.insert("aten::select", {softmax.output(), dim, i},
                                         {softmax.next(), softmax}, softmax.output(), sizes);
      parts.push_back(part);
    }
    return parts;
  }

  // Returns the softmax over the two images of a stack as one image, or null if it is not planned.
  Value softmax_of_pair(Value stack, std::int64_t dim) {
    if (is_reshape(stack.node()) && dim == 1) {
      const Value whole = joined(stack);
      return whole != nullptr ? vectors_.softmax_of_two(whole) : nullptr;
    }
    if (!stack.node().is("aten::stack")) return nullptr;
    const Parts& logits = parts_of(stack, dim);
    return logits.size() == 2 ? softmax_of_two(logits[0], logits[1]) : nullptr;
  }

  Value softmax_of_two(Value a, Value b) {
    Value image_a = vectors_.as_image(a), image_b = vectors_.as_image(b);
    const bool are_images = image_a != nullptr && image_b != nullptr;
    return are_images ? vectors_.softmax_of_two(image_a, image_b) : vectors_.softmax_of_two(a, b);
  }

  void take_sum(Node sum) {
    if (!sum.has_argument("dim") || constant_bool(sum.argument("keepdim")) != false) return;
    const auto dims = constant_ints(sum.argument("dim"));
    const auto rank = rank_of(sum.input(0));
    if (!rank || !dims || dims->size() != 1 || !is_none(sum.argument("dtype"))) return;
    const Parts& parts =
        parts_of(sum.input(0), dims->at(0) < 0 ? dims->at(0) + *rank : dims->at(0));
    if (parts.empty() || (parts.size() == 1 && may_be_returned(sum.output()))) return;
    Value total = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const Sizes sizes = *vectors_.proofs().sizes_seen(sum.output());
      total = vectors_.insert("aten::add", {total, parts[i]}, sum, total, sizes);
    }
    replace(sum.output(), total);
  }

  void take_select(Node select) {
    if (may_be_returned(select.output())) return;
    const auto rank = rank_of(select.input(0));
    const auto dim = rank ? dim_argument(select, "dim", *rank) : std::nullopt;
    if (!dim) return;
    const Parts& parts = parts_of(select.input(0), *dim);
    const auto place = dim_argument(select, "index", std::ssize(parts));
    if (parts.empty() || !place || *place < 0 || *place >= std::ssize(parts)) return;
    replace(select.output(), parts[*place]);
  }

  void take_unbind(Node unbind) {
    const auto rank = rank_of(unbind.input(0));
    const auto dim = rank ? dim_argument(unbind, "dim", *rank) : std::nullopt;
    const auto& uses = unbind.output().uses();
    if (!dim || uses.size() != 1 || !uses[0].user.is("prim::ListUnpack")) return;
    const Parts& parts = parts_of(unbind.input(0), *dim);
    const auto outputs = uses[0].user.outputs();
    if (parts.size() != outputs.size()) return;
    if (std::any_of(outputs.begin(), outputs.end(), may_be_returned)) return;
    for (std::size_t i = 0; i < parts.size(); ++i) replace(outputs[i], parts[i]);
  }

  const Graph& graph_;
  VectorImages vectors_;
  std::map<std::pair<Value, std::int64_t>, Parts> parts_;
  bool is_changed_ = false;
};

}  // namespace

bool take_stacks_apart(const Graph& graph, const SeenTensors& seen) {
  return Stacks(graph, seen).take_apart();
}

}  // namespace torchalgo
