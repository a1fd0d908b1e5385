// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/graph_sizes.h"

#include <limits>

#include "torchscript/constants.h"

namespace torchalgo {

using script::Node;
using script::Value;

namespace {

constexpr std::int64_t kToTheEnd = std::numeric_limits<std::int64_t>::max();

// Returns true if a slice with these arguments (begin, end, step) begins at `begin` and takes the
// rest.
bool takes_all_from(Node slice, std::size_t first, std::int64_t begin) {
  const auto from = constant_int(slice.input(first)), to = constant_int(slice.input(first + 1));
  const bool begins_there = from == begin || (begin == 0 && is_none(slice.input(first)));
  const bool takes_last = is_none(slice.input(first + 1)) || to == kToTheEnd;
  return begins_there && takes_last && constant_int(slice.input(first + 2)) == 1;
}

}  // namespace

std::optional<std::int64_t> constant_int(Value value) {
  const auto constant = value.constant();
  return constant && constant->isInt() ? std::optional(constant->toInt()) : std::nullopt;
}

bool is_shape_of(Value list, Value tensor) {
  Node node = list.node();
  return node.is("aten::size") && node.input_count() == 1 && node.input(0) == tensor;
}

Dimension size_source(Value number) {
  while (number.node().is("aten::Int", "prim::NumToTensor")) {
    number = number.node().input(0);  // tracing wraps numbers
  }
  const Node node = number.node();
  if (node.is("aten::size") && node.input_count() == 2) {
    return {node.input(0), constant_int(node.input(1))};
  }
  const bool is_item = node.is("aten::__getitem__");
  if (!is_item && !node.is("prim::ListUnpack")) return {};
  const Node list = node.input(0).node();
  if (!list.is("aten::size") || list.input_count() != 1) return {};
  const auto offset = static_cast<std::int64_t>(number.offset());
  return {list.input(0), is_item ? constant_int(node.input(1)) : offset};
}

std::optional<std::int64_t> dimension_of(Value number, Value tensor) {
  const auto [source, dim] = size_source(number);
  if (source != tensor) return std::nullopt;
  return dim && *dim < 0 ? std::optional(*dim + 4) : dim;
}

bool is_image_size_of(Value list, Value tensor) {
  Node node = list.node();
  if (node.is("aten::slice") && node.input_count() == 4 && is_shape_of(node.input(0), tensor)) {
    return takes_all_from(node, 1, 2) || takes_all_from(node, 1, -2);
  }
  return is_fixed_list(list) && node.input_count() == 2 &&
         dimension_of(node.input(0), tensor) == 2 && dimension_of(node.input(1), tensor) == 3;
}

bool is_view(Node node) { return node.is("aten::view", "aten::reshape"); }

std::vector<Value> sizes_of_view(Node view) {
  if (!is_fixed_list(view.input(1))) return {};
  const auto sizes = view.input(1).node().inputs();
  return {sizes.begin(), sizes.end()};
}

bool is_whole_slice(Node node) {
  return node.is("aten::slice") && node.input_count() == 5 && takes_all_from(node, 2, 0);
}

}  // namespace torchalgo
