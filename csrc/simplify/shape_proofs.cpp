// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/shape_proofs.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>

#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using script::Node;
using script::Value;

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

bool keeps_sizes(Node node) { return is_elementwise(node) || is_any(node, kSameSizes); }

// Returns the dimensions that a mean or sum reduces, from 0 on, in order; none if they are unknown.
std::vector<std::int64_t> reduced_dims(Node node, std::int64_t rank) {
  if (!node.has_argument("dim")) return {};
  auto dims = constant_ints(node.argument("dim"));
  if (!dims) return {};
  for (std::int64_t& dim : *dims) dim = dim < 0 ? dim + rank : dim;
  std::sort(dims->begin(), dims->end());
  return *dims;
}

}  // namespace

bool is_reshape(Node node) {
  if (node.is("aten::unflatten")) return true;
  return (node.is("aten::view", "aten::reshape")) &&
         node.input(1).type()->kind() == c10::TypeKind::ListType;
}

bool is_1x1(Node node) {
  if (!is_any(node, kConvolutions)) return false;
  const auto weight = constant_tensor(node.argument("weight"));
  if (!weight || weight->dim() != 4 || weight->size(2) != 1 || weight->size(3) != 1) return false;
  if (node.has_argument("transposed") && constant_bool(node.argument("transposed")) != false) {
    return false;
  }
  const auto padding = constant_ints(node.argument("padding"));
  const bool is_padded =
      !padding || std::any_of(padding->begin(), padding->end(), [](auto pad) { return pad != 0; });
  return !is_padded;
}

std::optional<std::int64_t> dim_argument(Node node, const char* name, std::int64_t rank) {
  if (!node.has_argument(name)) return std::nullopt;
  const auto dim = constant_int(node.argument(name));
  return dim && *dim < 0 ? std::optional(*dim + rank) : dim;
}

bool swaps_dims(Node node, std::int64_t a, std::int64_t b, std::int64_t rank) {
  if (node.is("aten::transpose")) {
    const auto one = dim_argument(node, "dim0", rank), other = dim_argument(node, "dim1", rank);
    return one && other && std::min(*one, *other) == a && std::max(*one, *other) == b;
  }
  if (a < 0 || b >= rank) return false;
  std::vector<std::int64_t> order(static_cast<std::size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<std::size_t>(a)], order[static_cast<std::size_t>(b)]);
  return is_permute(node, order);
}

const ShapeProofs::Sizes* ShapeProofs::sizes_seen(Value value) const {
  const auto it = seen_.find(value);
  return it != seen_.end() && it->second.is_always_so ? &it->second.sizes : nullptr;
}

void ShapeProofs::note(Value made, Value like, Sizes sizes) {
  const auto it = seen_.find(like);
  if (it == seen_.end()) return;
  SeenTensor tensor = it->second;
  tensor.sizes = std::move(sizes);
  seen_[made] = std::move(tensor);
}

std::optional<std::int64_t> ShapeProofs::rank_seen(Value value) const {
  const Sizes* sizes = sizes_seen(value);
  return sizes != nullptr ? std::optional(std::ssize(*sizes)) : std::nullopt;
}

// Returns an input of the node whose first dimension is that of the result, or null.
Value ShapeProofs::batch_source(Node node) const {
  if (node.inputs().empty()) return nullptr;
  Value src = node.input(0);
  if (keeps_sizes(node)) return src;
  if (is_any(node, kJoins)) {
    const auto rank = rank_seen(node.output());
    if (!rank || !is_fixed_list(src) || src.node().inputs().empty()) return nullptr;
    return dim_argument(node, "dim", *rank).value_or(0) > 0 ? src.node().input(0) : nullptr;
  }
  const auto rank = rank_seen(src);
  if (!rank) return nullptr;
  if (is_any(node, kPools) || is_any(node, kConvolutions)) return rank == 4 ? src : nullptr;
  if (node.is("aten::linear")) return *rank > 1 ? src : nullptr;
  if (node.is("aten::flatten")) {
    return dim_argument(node, "start_dim", *rank).value_or(0) > 0 ? src : nullptr;
  }
  if (is_any(node, kReductions)) {
    const std::vector<std::int64_t> dims = reduced_dims(node, *rank);
    return !dims.empty() && dims[0] > 0 ? src : nullptr;
  }
  if (is_any(node, kAlongDim)) {
    const std::int64_t extra = node.is("aten::unsqueeze") ? 1 : 0;
    return dim_argument(node, "dim", *rank + extra).value_or(0) > 0 ? src : nullptr;
  }
  if (node.is("aten::transpose")) {
    const auto a = dim_argument(node, "dim0", *rank), b = dim_argument(node, "dim1", *rank);
    return a.value_or(0) > 0 && b.value_or(0) > 0 ? src : nullptr;
  }
  if (node.is("aten::unflatten")) return splits_behind_batch(node) ? src : nullptr;
  if (is_reshape(node)) {
    const std::vector<Entry> entries = entries_of(node);
    if (entries.empty() || entries[0].number == nullptr) return nullptr;
    const auto [tensor, dim] = size_source(entries[0].number);
    return tensor != nullptr && dim == 0 ? tensor : nullptr;
  }
  if (is_any(node, kBinary) && is_tensor(node.input(1))) {
    // Broadcasting could make the batch of either one.
    return have_same_batch(src, node.input(1)) ? src : nullptr;
  }
  return nullptr;
}

Value ShapeProofs::batch_of(Value value) const {
  std::vector<Value> passed;
  for (Value next = value; next != nullptr; next = batch_source(value.node())) {
    value = next;
    if (const auto known = batches_.find(value); known != batches_.end()) {
      value = known->second;
      break;
    }
    passed.push_back(value);
  }
  for (Value one : passed) batches_[one] = value;
  return value;
}

bool ShapeProofs::have_same_batch(Value a, Value b) const { return batch_of(a) == batch_of(b); }

bool ShapeProofs::is_floating(Value value) const {
  const auto it = seen_.find(value);
  return it != seen_.end() && at::isFloatingType(it->second.scalar_type);
}

bool ShapeProofs::have_same_type(Value a, Value b) const {
  const auto first = seen_.find(a), second = seen_.find(b);
  return first != seen_.end() && second != seen_.end() &&
         first->second.scalar_type == second->second.scalar_type;
}

bool ShapeProofs::is_pooled(Value value) const {
  const auto known = pooled_.find(value);
  return known != pooled_.end() ? known->second : (pooled_[value] = find_pooled(value));
}

bool ShapeProofs::find_pooled(Value value) const {
  for (;;) {
    Node node = value.node();
    const Sizes* sizes = sizes_seen(value);
    if (sizes == nullptr || sizes->size() != 4 || (*sizes)[2] != 1 || (*sizes)[3] != 1)
      return false;
    if (node.is("aten::adaptive_avg_pool2d", "aten::adaptive_max_pool2d")) {
      return constant_ints(node.input(1)).has_value();
    }
    if (is_any(node, kReductions)) {
      return reduced_dims(node, 4) == Sizes{2, 3} &&
             constant_bool(node.argument("keepdim")) == true;
    }
    if (is_reshape(node)) {
      const std::vector<Entry> entries = entries_of(node);
      return entries.size() == 4 && is_proven(node, 1, entries[1], false) &&
             entries[2].constant == 1 && entries[3].constant == 1;
    }
    if (node.is("aten::cat") && is_fixed_list(node.input(0))) {
      const auto items = node.input(0).node().inputs();
      return dim_argument(node, "dim", 4) == 1 &&
             std::all_of(items.begin(), items.end(), [&](Value item) { return is_pooled(item); });
    }
    if (!keeps_sizes(node) && !is_1x1(node)) return false;
    value = node.input(0);
  }
}

// Returns true for an unflatten of a dimension behind the batch.
bool ShapeProofs::splits_behind_batch(Node unflatten) const {
  const auto rank = rank_seen(unflatten.input(0));
  return rank && dim_argument(unflatten, "dim", *rank).value_or(0) > 0;
}

std::vector<ShapeProofs::Entry> ShapeProofs::entries_of(Node view) {
  std::vector<Entry> entries;
  if (view.is("aten::unflatten")) return entries;
  if (const auto constants = constant_ints(view.input(1))) {
    for (const std::int64_t entry : *constants) entries.push_back({entry, nullptr});
  } else if (is_fixed_list(view.input(1))) {
    for (Value entry : view.input(1).node().inputs()) {
      entries.push_back({constant_int(entry), entry});
    }
  }
  return entries;
}

bool ShapeProofs::is_proven(Node view, std::size_t i, const Entry& entry, bool is_split) const {
  Value src = view.input(0);
  const Sizes& made = *sizes_seen(view.output());
  // A constant says nothing about the height and width of the source.
  if (entry.constant) return i > 0 && *entry.constant == made[i] && !(is_split && i >= 3);
  const auto [tensor, place] = size_source(entry.number);
  if (tensor == nullptr || !place || !rank_seen(tensor)) return false;
  const std::int64_t dim = *place < 0 ? *place + *rank_seen(tensor) : *place;
  if (i == 0) return dim == 0 && have_same_batch(tensor, src);
  if (is_split && i >= 3) return tensor == src && dim + 1 == static_cast<std::int64_t>(i);
  return dim == 1 && rank_seen(tensor) == 4 && (*sizes_seen(tensor))[1] == made[i];
}

bool ShapeProofs::are_proven(Node view, bool is_split) const {
  const Sizes* made = sizes_seen(view.output());
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

bool ShapeProofs::keeps_batch(Node view) const {
  if (view.is("aten::unflatten")) return splits_behind_batch(view);
  const Sizes *src = sizes_seen(view.input(0)), *made = sizes_seen(view.output());
  if (src == nullptr || made == nullptr || src->empty() || made->empty()) return false;
  return (*src)[0] == (*made)[0] && are_proven(view, false);
}

bool ShapeProofs::flattens_image(Node view) const {
  const Sizes *src = sizes_seen(view.input(0)), *made = sizes_seen(view.output());
  if (src == nullptr || made == nullptr || src->size() != 4 || made->size() != 3) return false;
  const bool fits = (*made)[0] == (*src)[0] && (*made)[1] == (*src)[1];
  const std::vector<Entry> entries = entries_of(view);
  return fits && entries.size() == 3 && is_proven(view, 0, entries[0], false) &&
         is_proven(view, 1, entries[1], false);
}

bool ShapeProofs::keeps_channels(Node view) const {
  const Sizes *src = sizes_seen(view.input(0)), *made = sizes_seen(view.output());
  if (src == nullptr || made == nullptr || src->size() != 3 || made->size() != 4) return false;
  const std::vector<Entry> entries = entries_of(view);
  const bool fits = (*made)[0] == (*src)[0] && (*made)[1] == (*src)[1];
  return fits && entries.size() == 4 && is_proven(view, 0, entries[0], false) &&
         is_proven(view, 1, entries[1], false);
}

bool ShapeProofs::splits_channels(Node view) const {
  const Sizes *src = sizes_seen(view.input(0)), *made = sizes_seen(view.output());
  if (src == nullptr || made == nullptr || src->size() != 4 || made->size() != 5) return false;
  const bool fits = (*made)[0] == (*src)[0] && (*made)[1] * (*made)[2] == (*src)[1] &&
                    (*made)[3] == (*src)[2] && (*made)[4] == (*src)[3];
  if (fits && view.is("aten::unflatten")) {
    return dim_argument(view, "dim", 4) == 1 && constant_ints(view.input(2));
  }
  return fits && are_proven(view, true);
}

}  // namespace torchalgo
