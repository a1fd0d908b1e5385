// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/graph_sizes.h"

#include <torch/csrc/jit/ir/constants.h>

#include <limits>

#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Node;
using torch::jit::Value;

namespace {

constexpr std::int64_t kToTheEnd = std::numeric_limits<std::int64_t>::max();

// Returns true if a slice with these arguments (begin, end, step) begins at `begin` and takes the
// rest.
bool takes_all_from(const Node* slice, std::size_t first, std::int64_t begin) {
  const auto from = constant_int(slice->input(first)), to = constant_int(slice->input(first + 1));
  const bool begins_there = from == begin || (begin == 0 && is_none(slice->input(first)));
  const bool takes_last = is_none(slice->input(first + 1)) || to == kToTheEnd;
  return begins_there && takes_last && constant_int(slice->input(first + 2)) == 1;
}

}  // namespace

std::optional<std::int64_t> constant_int(const Value* value) {
  const auto constant = torch::jit::toIValue(value);
  return constant && constant->isInt() ? std::optional(constant->toInt()) : std::nullopt;
}

bool is_shape_of(const Value* list, const Value* tensor) {
  const Node* node = list->node();
  return is_kind(node, "aten::size") && node->inputs().size() == 1 && node->input(0) == tensor;
}

std::optional<std::int64_t> dimension_of(const Value* number, const Value* tensor) {
  while (is_kind(number->node(), "aten::Int") || is_kind(number->node(), "prim::NumToTensor")) {
    number = number->node()->input(0);  // tracing wraps numbers
  }
  const Node* node = number->node();
  std::optional<std::int64_t> dim;
  if (is_kind(node, "prim::ListUnpack") && is_shape_of(node->input(0), tensor)) {
    dim = static_cast<std::int64_t>(number->offset());
  } else if (is_kind(node, "aten::__getitem__") && is_shape_of(node->input(0), tensor)) {
    dim = constant_int(node->input(1));
  } else if (is_kind(node, "aten::size") && node->inputs().size() == 2 &&
             node->input(0) == tensor) {
    dim = constant_int(node->input(1));
  }
  return dim && *dim < 0 ? std::optional(*dim + 4) : dim;
}

bool is_image_size_of(const Value* list, const Value* tensor) {
  const Node* node = list->node();
  if (is_kind(node, "aten::slice") && node->inputs().size() == 4 &&
      is_shape_of(node->input(0), tensor)) {
    return takes_all_from(node, 1, 2) || takes_all_from(node, 1, -2);
  }
  return is_fixed_list(list) && node->inputs().size() == 2 &&
         dimension_of(node->input(0), tensor) == 2 && dimension_of(node->input(1), tensor) == 3;
}

bool is_view(const Node* node) {
  return is_kind(node, "aten::view") || is_kind(node, "aten::reshape");
}

std::vector<const Value*> sizes_of_view(const Node* view) {
  if (!is_fixed_list(view->input(1))) return {};
  const auto sizes = view->input(1)->node()->inputs();
  return {sizes.begin(), sizes.end()};
}

bool is_whole_slice(const Node* node) {
  return is_kind(node, "aten::slice") && node->inputs().size() == 5 && takes_all_from(node, 2, 0);
}

}  // namespace torchalgo
