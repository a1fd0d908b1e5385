// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/shape_proofs.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using torch::jit::Node;
using torch::jit::Value;

namespace {

constexpr std::array<std::string_view, 6> kSameSizes = {"aten::batch_norm",    "aten::group_norm",
                                                        "aten::instance_norm", "aten::softmax",
                                                        "aten::contiguous",    "aten::clone"};

constexpr std::array<std::string_view, 6> kPools = {
    "aten::max_pool2d",          "aten::avg_pool2d",         "aten::adaptive_avg_pool2d",
    "aten::adaptive_max_pool2d", "aten::upsample_nearest2d", "aten::upsample_bilinear2d"};

constexpr std::array<std::string_view, 3> kConvolutions = {"aten::conv2d", "aten::_convolution",
                                                           "aten::convolution"};

constexpr std::array<std::string_view, 2> kReductions = {"aten::mean", "aten::sum"};

// They change only the dimension that their argument `dim` names.
constexpr std::array<std::string_view, 5> kAlongDim = {
    "aten::select", "aten::slice", "aten::narrow", "aten::unsqueeze", "aten::squeeze"};

constexpr std::array<std::string_view, 2> kJoins = {"aten::cat", "aten::stack"};

constexpr std::array<std::string_view, 3> kBinary = {"aten::add", "aten::mul", "aten::sub"};

bool keeps_sizes(const Node* node) { return is_elementwise(node) || is_any(node, kSameSizes); }

// Returns the dimensions that a mean or sum reduces, from 0 on, in order; none if they are unknown.
std::vector<std::int64_t> reduced_dims(const Node* node, std::int64_t rank) {
  if (!node->hasNamedInput("dim")) return {};
  auto dims = constant_ints(node->namedInput("dim"));
  if (!dims) return {};
  for (std::int64_t& dim : *dims) dim = dim < 0 ? dim + rank : dim;
  std::sort(dims->begin(), dims->end());
  return *dims;
}

// Returns the tensor and its dimension whose size the number is; a null tensor if it is none.
std::pair<const Value*, std::optional<std::int64_t>> dimension_of(const Value* number) {
  while (is_kind(number->node(), "aten::Int") || is_kind(number->node(), "prim::NumToTensor")) {
    number = number->node()->input(0);  // tracing wraps numbers
  }
  const Node* node = number->node();
  const auto is_size = [](const Node* size, std::size_t inputs) {
    return is_kind(size, "aten::size") && size->inputs().size() == inputs;
  };
  if (is_size(node, 2)) return {node->input(0), constant_int(node->input(1))};
  const bool is_item = is_kind(node, "aten::__getitem__"),
             is_part = is_kind(node, "prim::ListUnpack");
  if ((!is_item && !is_part) || !is_size(node->input(0)->node(), 1)) return {nullptr, {}};
  const auto place = is_item
                         ? constant_int(node->input(1))
                         : std::optional<std::int64_t>(static_cast<std::int64_t>(number->offset()));
  return {node->input(0)->node()->input(0), place};
}

}  // namespace

bool is_reshape(const Node* node) {
  if (is_kind(node, "aten::unflatten")) return true;
  return (is_kind(node, "aten::view") || is_kind(node, "aten::reshape")) &&
         node->input(1)->type()->kind() == c10::TypeKind::ListType;
}

bool is_1x1(const Node* node) {
  if (!is_any(node, kConvolutions)) return false;
  const auto weight = constant_tensor(node->namedInput("weight"));
  if (!weight || weight->dim() != 4 || weight->size(2) != 1 || weight->size(3) != 1) return false;
  if (node->hasNamedInput("transposed") && constant_bool(node->namedInput("transposed")) != false) {
    return false;
  }
  const auto padding = constant_ints(node->namedInput("padding"));
  const bool is_padded =
      !padding || std::any_of(padding->begin(), padding->end(), [](auto pad) { return pad != 0; });
  return !is_padded;
}

std::optional<std::int64_t> dim_argument(const Node* node, const char* name, std::int64_t rank) {
  if (!node->hasNamedInput(name)) return std::nullopt;
  const auto dim = constant_int(node->namedInput(name));
  return dim && *dim < 0 ? std::optional(*dim + rank) : dim;
}

bool swaps_dims(const Node* node, std::int64_t a, std::int64_t b, std::int64_t rank) {
  if (is_kind(node, "aten::transpose")) {
    const auto one = dim_argument(node, "dim0", rank), other = dim_argument(node, "dim1", rank);
    return one && other && std::min(*one, *other) == a && std::max(*one, *other) == b;
  }
  if (a < 0 || b >= rank) return false;
  std::vector<std::int64_t> order(static_cast<std::size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]);
  return is_permute(node, order);
}

const ShapeProofs::Sizes* ShapeProofs::sizes_seen(const Value* value) const {
  const auto it = seen_.find(value);
  return it != seen_.end() && it->second.is_always_so ? &it->second.sizes : nullptr;
}

void ShapeProofs::note(const Value* made, const Value* like, Sizes sizes) {
  const auto it = seen_.find(like);
  if (it == seen_.end()) return;
  SeenTensor tensor = it->second;
  tensor.sizes = std::move(sizes);
  seen_[made] = std::move(tensor);
}

std::optional<std::int64_t> ShapeProofs::rank_seen(const Value* value) const {
  const Sizes* sizes = sizes_seen(value);
  return sizes != nullptr ? std::optional(std::ssize(*sizes)) : std::nullopt;
}

// Returns an input of the node whose first dimension is that of the result, or null.
const Value* ShapeProofs::batch_source(const Node* node) const {
  if (node->inputs().empty()) return nullptr;
  const Value* src = node->input(0);
  if (keeps_sizes(node)) return src;
  if (is_any(node, kJoins)) {
    const auto rank = rank_seen(node->output());
    if (!rank || !is_fixed_list(src) || src->node()->inputs().empty()) return nullptr;
    return dim_argument(node, "dim", *rank).value_or(0) > 0 ? src->node()->input(0) : nullptr;
  }
  const auto rank = rank_seen(src);
  if (!rank) return nullptr;
  if (is_any(node, kPools) || is_any(node, kConvolutions)) return rank == 4 ? src : nullptr;
  if (is_kind(node, "aten::linear")) return *rank > 1 ? src : nullptr;
  if (is_kind(node, "aten::flatten")) {
    return dim_argument(node, "start_dim", *rank).value_or(0) > 0 ? src : nullptr;
  }
  if (is_any(node, kReductions)) {
    const std::vector<std::int64_t> dims = reduced_dims(node, *rank);
    return !dims.empty() && dims[0] > 0 ? src : nullptr;
  }
  if (is_any(node, kAlongDim)) {
    const std::int64_t extra = is_kind(node, "aten::unsqueeze") ? 1 : 0;
    return dim_argument(node, "dim", *rank + extra).value_or(0) > 0 ? src : nullptr;
  }
  if (is_kind(node, "aten::transpose")) {
    const auto a = dim_argument(node, "dim0", *rank), b = dim_argument(node, "dim1", *rank);
    return a.value_or(0) > 0 && b.value_or(0) > 0 ? src : nullptr;
  }
  if (is_kind(node, "aten::unflatten")) return splits_behind_batch(node) ? src : nullptr;
  if (is_reshape(node)) {
    const std::vector<Entry> entries = entries_of(node);
    if (entries.empty() || entries[0].number == nullptr) return nullptr;
    const auto [tensor, dim] = dimension_of(entries[0].number);
    return tensor != nullptr && dim == 0 ? tensor : nullptr;
  }
  if (is_any(node, kBinary) && is_tensor(node->input(1))) {
    // Broadcasting could make the batch of either one.
    return have_same_batch(src, node->input(1)) ? src : nullptr;
  }
  return nullptr;
}

const Value* ShapeProofs::batch_of(const Value* value) const {
  std::vector<const Value*> passed;
  for (const Value* next = value; next != nullptr; next = batch_source(value->node())) {
    value = next;
    if (const auto known = batches_.find(value); known != batches_.end()) {
      value = known->second;
      break;
    }
    passed.push_back(value);
  }
  for (const Value* one : passed) batches_[one] = value;
  return value;
}

bool ShapeProofs::have_same_batch(const Value* a, const Value* b) const {
  return batch_of(a) == batch_of(b);
}

bool ShapeProofs::is_floating(const Value* value) const {
  const auto it = seen_.find(value);
  return it != seen_.end() && at::isFloatingType(it->second.scalar_type);
}

bool ShapeProofs::have_same_type(const Value* a, const Value* b) const {
  const auto first = seen_.find(a), second = seen_.find(b);
  return first != seen_.end() && second != seen_.end() &&
         first->second.scalar_type == second->second.scalar_type;
}

bool ShapeProofs::is_pooled(const Value* value) const {
  const auto known = pooled_.find(value);
  return known != pooled_.end() ? known->second : pooled_[value] = find_pooled(value);
}

bool ShapeProofs::find_pooled(const Value* value) const {
  for (;;) {
    const Node* node = value->node();
    const Sizes* sizes = sizes_seen(value);
    if (sizes == nullptr || sizes->size() != 4 || (*sizes)[2] != 1 || (*sizes)[3] != 1)
      return false;
    if (is_kind(node, "aten::adaptive_avg_pool2d") || is_kind(node, "aten::adaptive_max_pool2d")) {
      return constant_ints(node->input(1)).has_value();
    }
    if (is_any(node, kReductions)) {
      return reduced_dims(node, 4) == Sizes{2, 3} &&
             constant_bool(node->namedInput("keepdim")) == true;
    }
    if (is_reshape(node)) {
      const std::vector<Entry> entries = entries_of(node);
      return entries.size() == 4 && is_proven(node, 1, entries[1], false) &&
             entries[2].constant == 1 && entries[3].constant == 1;
    }
    if (is_kind(node, "aten::cat") && is_fixed_list(node->input(0))) {
      const auto items = node->input(0)->node()->inputs();
      return dim_argument(node, "dim", 4) == 1 &&
             std::all_of(items.begin(), items.end(), [&](auto* item) { return is_pooled(item); });
    }
    if (!keeps_sizes(node) && !is_1x1(node)) return false;
    value = node->input(0);
  }
}

// Returns true for an unflatten of a dimension behind the batch.
bool ShapeProofs::splits_behind_batch(const Node* unflatten) const {
  const auto rank = rank_seen(unflatten->input(0));
  return rank && dim_argument(unflatten, "dim", *rank).value_or(0) > 0;
}

std::vector<ShapeProofs::Entry> ShapeProofs::entries_of(const Node* view) {
  std::vector<Entry> entries;
  if (is_kind(view, "aten::unflatten")) return entries;
  if (const auto constants = constant_ints(view->input(1))) {
    for (const std::int64_t entry : *constants) entries.push_back({entry, nullptr});
  } else if (is_fixed_list(view->input(1))) {
    for (const Value* entry : view->input(1)->node()->inputs()) {
      entries.push_back({constant_int(entry), entry});
    }
  }
  return entries;
}

bool ShapeProofs::is_proven(const Node* view, std::size_t i, const Entry& entry,
                            bool is_split) const {
  const Value* src = view->input(0);
  const Sizes& made = *sizes_seen(view->output());
  // A constant says nothing about the height and width of the source.
  if (entry.constant) return i > 0 && *entry.constant == made[i] && !(is_split && i >= 3);
  const auto [tensor, place] = dimension_of(entry.number);
  if (tensor == nullptr || !place || !rank_seen(tensor)) return false;
  const std::int64_t dim = *place < 0 ? *place + *rank_seen(tensor) : *place;
  if (i == 0) return dim == 0 && have_same_batch(tensor, src);
  if (is_split && i >= 3) return tensor == src && dim + 1 == static_cast<std::int64_t>(i);
  return dim == 1 && rank_seen(tensor) == 4 && (*sizes_seen(tensor))[1] == made[i];
}

bool ShapeProofs::are_proven(const Node* view, bool is_split) const {
  const Sizes* made = sizes_seen(view->output());
  if (made == nullptr) return false;
  const std::vector<Entry> entries = entries_of(view);
  if (entries.size() != made->size()) return false;
  // The number of elements proves one more entry, except if it fixes the batch.
  int missing = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i == 0 && entries[i].constant && *entries[i].constant != -1) return false;
    missing += is_proven(view, i, entries[i], is_split) ? 0 : 1;
  }
  return missing <= 1;
}

bool ShapeProofs::keeps_batch(const Node* view) const {
  if (is_kind(view, "aten::unflatten")) return splits_behind_batch(view);
  const Sizes *src = sizes_seen(view->input(0)), *made = sizes_seen(view->output());
  if (src == nullptr || made == nullptr || src->empty() || made->empty()) return false;
  return (*src)[0] == (*made)[0] && are_proven(view, false);
}

bool ShapeProofs::flattens_image(const Node* view) const {
  const Sizes *src = sizes_seen(view->input(0)), *made = sizes_seen(view->output());
  if (src == nullptr || made == nullptr || src->size() != 4 || made->size() != 3) return false;
  const bool fits = (*made)[0] == (*src)[0] && (*made)[1] == (*src)[1];
  const std::vector<Entry> entries = entries_of(view);
  return fits && entries.size() == 3 && is_proven(view, 0, entries[0], false) &&
         is_proven(view, 1, entries[1], false);
}

bool ShapeProofs::keeps_channels(const Node* view) const {
  const Sizes *src = sizes_seen(view->input(0)), *made = sizes_seen(view->output());
  if (src == nullptr || made == nullptr || src->size() != 3 || made->size() != 4) return false;
  const std::vector<Entry> entries = entries_of(view);
  const bool fits = (*made)[0] == (*src)[0] && (*made)[1] == (*src)[1];
  return fits && entries.size() == 4 && is_proven(view, 0, entries[0], false) &&
         is_proven(view, 1, entries[1], false);
}

bool ShapeProofs::splits_channels(const Node* view) const {
  const Sizes *src = sizes_seen(view->input(0)), *made = sizes_seen(view->output());
  if (src == nullptr || made == nullptr || src->size() != 4 || made->size() != 5) return false;
  const bool fits = (*made)[0] == (*src)[0] && (*made)[1] * (*made)[2] == (*src)[1] &&
                    (*made)[3] == (*src)[2] && (*made)[4] == (*src)[3];
  if (fits && is_kind(view, "aten::unflatten")) {
    return dim_argument(view, "dim", 4) == 1 && constant_ints(view->input(2));
  }
  return fits && are_proven(view, true);
}

}  // namespace torchalgo
