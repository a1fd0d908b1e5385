// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/patterns/vector_images.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "simplify/constant_conv.h"
#include "simplify/insert_layer.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Node;
using script::Value;
using Sizes = ShapeProofs::Sizes;

namespace {

// Returns true if the op leaves the order of the elements of each vector as it is: only dimensions
// of size 1 change their place, and the batch stays in front.
bool keeps_order(Node node, const Sizes& sizes) {
  const auto rank = std::ssize(sizes);
  Sizes order;
  if (node.is("aten::transpose")) {
    const auto a = dim_argument(node, "dim0", rank), b = dim_argument(node, "dim1", rank);
    if (!a || !b) return false;
    for (std::int64_t i = 0; i < rank; ++i) order.push_back(i == *a ? *b : i == *b ? *a : i);
  } else if (node.is("aten::permute")) {
    const auto dims = constant_ints(node.input(1));
    if (!dims) return false;
    for (const std::int64_t dim : *dims) order.push_back(dim < 0 ? dim + rank : dim);
  }
  if (order.empty() || order[0] != 0) return false;
  std::int64_t last = 0;
  for (const std::int64_t dim : order) {
    if (dim == 0 || sizes[dim] == 1) continue;
    if (dim < last) return false;
    last = dim;
  }
  return true;
}

// Returns true if the op gives the elements of a tensor [n, ...] another shape [n, ...].
bool reshapes_vectors(Node node, const ShapeProofs& proofs) {
  const Sizes* src = proofs.sizes_seen(node.input(0));
  if (src == nullptr) return false;
  const auto rank = std::ssize(*src);
  if (is_reshape(node)) return proofs.keeps_batch(node);
  if (node.is("aten::contiguous")) return true;
  if (node.is("aten::flatten")) return dim_argument(node, "start_dim", rank).value_or(0) > 0;
  if (node.is("aten::unsqueeze")) return dim_argument(node, "dim", rank + 1).value_or(0) > 0;
  if (node.is("aten::squeeze")) return dim_argument(node, "dim", rank).value_or(0) > 0;
  return keeps_order(node, *src);
}

// Returns the dimensions of a mean that drops them, from 0 on, in order. Returns none for other
// ops.
Sizes mean_dims(Node node, const ShapeProofs& proofs) {
  if (!node.is("aten::mean") || !node.has_argument("keepdim")) return {};
  const Sizes* src = proofs.sizes_seen(node.input(0));
  auto dims = constant_ints(node.argument("dim"));
  if (src == nullptr || !dims || constant_bool(node.argument("keepdim")) != false) return {};
  if (!is_none(node.argument("dtype"))) return {};
  for (std::int64_t& dim : *dims) dim = dim < 0 ? dim + std::ssize(*src) : dim;
  std::sort(dims->begin(), dims->end());
  return *dims;
}

// Returns the image [n, c, h, w] of which the node is the mean [n, c], at once or first over the
// rows, or null.
Value pooled_source(Node node, const ShapeProofs& proofs) {
  const auto is_image = [&](Value value) {
    const Sizes* sizes = proofs.sizes_seen(value);
    return sizes != nullptr && sizes->size() == 4;
  };
  const Sizes dims = mean_dims(node, proofs);
  if (dims == Sizes{2, 3} && is_image(node.input(0))) return node.input(0);
  if (dims != Sizes{2}) return nullptr;
  const Node rows = node.input(0).node();
  if (mean_dims(rows, proofs) != Sizes{3} || !is_image(rows.input(0))) return nullptr;
  return rows.input(0);
}

// Returns true if all readers of the vectors may become convolutions or activations, or images.
bool has_vector_readers(Value value, const ShapeProofs& proofs) {
  const auto& uses = value.uses();
  return std::all_of(uses.begin(), uses.end(), [&](const script::Use& use) {
    Node user = use.user;
    return user.is("aten::linear", "prim::ListConstruct", "aten::size") || is_elementwise(user) ||
           (!user.inputs().empty() && is_tensor(user.input(0)) && reshapes_vectors(user, proofs));
  });
}

// Returns how many inputs of nodes the value is, not counting questions for its size.
std::ptrdiff_t count_readers(Value value) {
  const auto& uses = value.uses();
  return std::count_if(uses.begin(), uses.end(),
                       [](const script::Use& use) { return !use.user.is("aten::size"); });
}

}  // namespace

bool VectorImages::is_never_written(Value value) const { return !writes_.has(value); }

void VectorImages::note_same(Value made, Value old) {
  if (const Sizes* sizes = proofs_.sizes_seen(old)) proofs_.note(made, old, *sizes);
}

Value VectorImages::insert(const char* kind, const std::vector<script::Argument>& inputs,
                           const script::Builder& at, Value like, Sizes sizes) {
  const Value made = at.call(kind, inputs);
  proofs_.note(made, like, std::move(sizes));
  return made;
}

Value VectorImages::insert_like(Node op, Value src) {
  const Value made = script::Builder(op).copy(op, {src}).output();
  note_same(made, src);
  return made;
}

Value VectorImages::channels(Value whole, std::int64_t begin, std::int64_t count, Node before) {
  Sizes sizes = *proofs_.sizes_seen(whole);
  sizes[1] = count;
  return insert("aten::narrow", {whole, std::int64_t{1}, begin, count}, before, whole, sizes);
}

Value VectorImages::as_image(Value value) {
  if (const auto known = images_.find(value); known != images_.end()) return known->second;
  const Value image = is_never_written(value) ? find_image(value) : nullptr;
  return images_[value] = image;
}

Value VectorImages::find_image(Value value) {
  const Node node = value.node();
  const Sizes* sizes = proofs_.sizes_seen(value);
  if (sizes == nullptr || sizes->size() < 2 || node.inputs().empty()) return nullptr;
  if (node.is("aten::cat", "aten::stack")) {
    if (Value image = joined_image(node)) return image;
  }
  if (is_tensor(node.input(0)) && node.output_count() == 1) {
    if (Value image = image_of_source(node)) return image;
  }
  return proofs_.is_pooled(value) ? value : nullptr;
}

// Returns the image of the node's result, made from that of its first input.
Value VectorImages::image_of_source(Node node) {
  const Value src = node.input(0);
  const Sizes* sizes = proofs_.sizes_seen(src);
  if (sizes == nullptr) return nullptr;
  if (reshapes_vectors(node, proofs_)) return as_image(src);
  const bool is_vector = sizes->size() == 2;
  if (is_elementwise(node)) {
    const Value image = as_image(src);
    return image == nullptr || image == src ? nullptr : insert_like(node, image);
  }
  if (node.is("aten::softmax")) return softmax_image(node);
  if (node.is("aten::linear") && is_vector && has_vector_readers(node.output(), proofs_)) {
    const Value image = as_image(src);
    return image != nullptr ? convolution_for(node, image) : nullptr;
  }
  const Value whole = pooled_source(node, proofs_);
  if (whole == nullptr || !is_never_written(whole)) return nullptr;
  if (!has_vector_readers(node.output(), proofs_)) return nullptr;
  const Sizes& image = *proofs_.sizes_seen(whole);
  return insert("aten::mean", {whole, Sizes{2, 3}, true}, node, whole, {image[0], image[1], 1, 1});
}

Value VectorImages::convolution_for(Node linear, Value src) {
  const auto weight = constant_tensor(linear.input(1));
  const auto bias = constant_tensor(linear.input(2));
  if (!weight || weight->dim() != 2 || (!bias && !is_none(linear.input(2)))) return nullptr;
  if ((*proofs_.sizes_seen(src))[1] != weight->size(1)) return nullptr;
  const Sizes sizes = {(*proofs_.sizes_seen(src))[0], weight->size(0), 1, 1};
  const script::Builder at(linear);
  const Value filters = at.weight(filters_of(linear), linear.input(1));
  const Value made = insert_convolution(at, linear, src, filters);
  proofs_.note(made, linear.output(), sizes);
  return made;
}

// Vectors [n, c] in a stack [n, parts, c], or vectors [n, 1, c] joined to one, are images joined
// along their channels.
Value VectorImages::joined_image(Node join) {
  const Sizes* sizes = proofs_.sizes_seen(join.output());
  if (sizes == nullptr || sizes->size() != 3 || !is_fixed_list(join.input(0))) return nullptr;
  if (dim_argument(join, "dim", 3) != 1) return nullptr;
  std::vector<Value> images;
  for (Value item : join.input(0).node().inputs()) {
    const Sizes* part = proofs_.sizes_seen(item);
    const bool is_vector = part != nullptr && (part->size() == 2 || (*part)[1] == 1);
    const Value image = is_vector ? as_image(item) : nullptr;
    if (image == nullptr) return nullptr;
    images.push_back(image);
  }
  const Value list = script::Builder(join).tensors(images);
  return insert("aten::cat", {list, std::int64_t{1}}, join, join.output(),
                {(*sizes)[0], (*sizes)[1] * (*sizes)[2], 1, 1});
}

// A softmax over the first dimension behind the batch whose size is not 1, in vectors of fixed
// size.
Value VectorImages::softmax_image(Node softmax) {
  const Sizes& sizes = *proofs_.sizes_seen(softmax.input(0));
  const auto dim = dim_argument(softmax, "dim", std::ssize(sizes));
  if (dim.value_or(0) < 1) return nullptr;
  std::int64_t channels = 1;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    if (static_cast<std::int64_t>(i) < *dim && sizes[i] != 1) return nullptr;
    channels *= sizes[i];
  }
  const Value logits = as_image(softmax.input(0));
  if (logits == nullptr) return nullptr;
  if (sizes[*dim] == 2 && is_none(softmax.input(2))) {
    if (Value made = softmax_of_two(logits)) return made;
  }
  const Value vectors = softmax.output();
  const Value made = insert("aten::reshape", {vectors, Sizes{-1, channels, 1, 1}},
                            {softmax.next(), softmax}, vectors, {sizes[0], channels, 1, 1});
  proofs_.note_batch(made, vectors);
  return made;
}

VectorImages::Logits VectorImages::logits_of(Value value) {
  const Node node = value.node();
  if (!is_1x1(node) || count_readers(value) > 1) return {};
  if (constant_number(node.argument("groups")) != 1.0) return {};
  const auto bias = constant_tensor(node.argument("bias"));
  if (!bias && !is_none(node.argument("bias"))) return {};
  return {node, *constant_tensor(node.argument("weight")), bias.value_or(at::Tensor())};
}

// softmax([a, b]) = [sigmoid(a - b), sigmoid(b - a)].
Value VectorImages::insert_sigmoid(const Logits& a, const Logits& b) {
  const auto differences = [](const at::Tensor& one, const at::Tensor& other) {
    const at::Tensor wide = one.to(at::kDouble) - other.to(at::kDouble);
    return at::cat({wide, -wide}).to(one.scalar_type());
  };
  const Node place = a.conv.is_before(b.conv) ? b.conv : a.conv;
  const script::Builder at(place);
  std::vector<Value> inputs = {a.conv.input(0),
                               at.weight(differences(a.weight, b.weight), a.conv.input(1))};
  if (a.bias.defined()) inputs.push_back(at.constant(differences(a.bias, b.bias)));
  const Node conv = at.copy(a.conv, inputs);
  Sizes sizes = *proofs_.sizes_seen(a.conv.output());
  sizes[1] = 2 * a.weight.size(0);
  proofs_.note(conv.output(), a.conv.output(), sizes);
  return insert("aten::sigmoid", {conv.output()}, place, conv.output(), sizes);
}

Value VectorImages::softmax_of_two(Value logits) {
  if (Node cat = logits.node(); cat.is("aten::cat")) {
    if (!is_fixed_list(cat.input(0)) || dim_argument(cat, "dim", 4) != 1) return nullptr;
    const auto items = cat.input(0).node().inputs();
    if (items.size() != 2) return nullptr;
    return softmax_of_two(items[0], items[1]);
  }
  const Logits all = logits_of(logits);
  if (all.conv == nullptr || all.weight.size(0) % 2 != 0) return nullptr;
  const std::int64_t half = all.weight.size(0) / 2;
  const auto part = [&](std::int64_t begin) {
    const at::Tensor bias = all.bias.defined() ? all.bias.narrow(0, begin, half) : all.bias;
    return Logits{all.conv, all.weight.narrow(0, begin, half), bias};
  };
  return insert_sigmoid(part(0), part(half));
}

Value VectorImages::softmax_of_two(Value a, Value b) {
  const Logits one = logits_of(a), other = logits_of(b);
  if (one.conv == nullptr || other.conv == nullptr) return nullptr;
  const auto strides = constant_ints(one.conv.argument("stride"));
  const bool are_alike = one.conv.kind() == other.conv.kind() &&
                         one.conv.input(0) == other.conv.input(0) &&
                         is_never_written(one.conv.input(0)) && strides &&
                         strides == constant_ints(other.conv.argument("stride")) &&
                         one.weight.sizes() == other.weight.sizes() &&
                         one.weight.scalar_type() == other.weight.scalar_type() &&
                         one.bias.defined() == other.bias.defined();
  return are_alike ? insert_sigmoid(one, other) : nullptr;
}

}  // namespace torchalgo
