// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/affine.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "torchscript/constants.h"

namespace torchalgo {

using script::Node;
using script::Value;

namespace {

// Returns the description of a tensor that is known to have channels, or null.
const SeenTensor* find_image(Value value, const SeenTensors& seen) {
  const auto it = seen.find(value);
  if (it == seen.end() || !it->second.is_always_so) return nullptr;
  const SeenTensor& tensor = it->second;
  return tensor.sizes.size() >= 2 && dtype_of_scalar(tensor.scalar_type) ? &tensor : nullptr;
}

// Returns the constant operand of an op on `image` as one number per channel; nullopt if it has
// other numbers, or makes the result another type than the image's.
std::optional<at::Tensor> as_vector(Value operand, const SeenTensor& image) {
  const std::int64_t channels = image.sizes[1];
  if (const auto number = constant_number(operand))
    return at::full({channels}, *number, at::kDouble);
  const std::optional<at::Tensor> tensor = constant_tensor(operand);
  if (!tensor || tensor->layout() != at::kStrided || tensor->is_complex()) return std::nullopt;
  const auto rank = static_cast<std::int64_t>(image.sizes.size());
  if (tensor->dim() > rank) return std::nullopt;
  if (tensor->dim() > 0 && tensor->scalar_type() != image.scalar_type) return std::nullopt;
  const at::Tensor numbers = tensor->to(at::kCPU, at::kDouble).reshape({-1});
  if (tensor->numel() == 1) return numbers.expand({channels});
  const std::int64_t dim = 1 - (rank - tensor->dim());
  const bool is_vector = dim >= 0 && tensor->size(dim) == tensor->numel();
  if (!is_vector || tensor->numel() != channels) return std::nullopt;
  return numbers;
}

double largest(const at::Tensor& numbers) {
  return numbers.numel() == 0 ? 0 : numbers.abs().max().item<double>();
}

std::optional<Affine> read_batch_norm(Node node, const SeenTensor& image) {
  const auto training = constant_bool(node.argument("training"));
  const auto eps = constant_number(node.argument("eps"));
  if (!training || *training || !eps) return std::nullopt;
  const auto vector = [&](const char* name, double otherwise) -> std::optional<at::Tensor> {
    Value operand = node.argument(name);
    if (is_none(operand)) return at::full({image.sizes[1]}, otherwise, at::kDouble);
    const std::optional<at::Tensor> tensor = constant_tensor(operand);
    if (!tensor || tensor->scalar_type() != image.scalar_type) return std::nullopt;
    return tensor->to(at::kCPU, at::kDouble);
  };
  const auto weight = vector("weight", 1), bias = vector("bias", 0);
  const auto mean = vector("running_mean", 0), variance = vector("running_var", 1);
  if (!weight || !bias || !mean || !variance) return std::nullopt;
  const at::Tensor inverse = variance->add(*eps).rsqrt(), scale = *weight * inverse;
  return Affine{node.input(0), scale, *bias - *mean * scale, true, largest(*mean * inverse)};
}

// The factor of a sum's second operand.
std::optional<double> alpha_of(Node node) {
  return node.has_argument("alpha") ? constant_number(node.argument("alpha")) : 1.0;
}

// Returns what read_affine does, also if a number is infinite or NaN.
std::optional<Affine> read_any_affine(Node node, const SeenTensors& seen) {
  if (node.schema() == nullptr || node.output_count() != 1) return std::nullopt;
  const std::string_view kind = node.kind();
  if (kind == "aten::batch_norm") {
    const SeenTensor* const image = find_image(node.output(), seen);
    return image == nullptr ? std::nullopt : read_batch_norm(node, *image);
  }
  const bool is_sum = kind == "aten::add" || kind == "aten::sub" || kind == "aten::rsub";
  const bool is_product = kind == "aten::mul" || kind == "aten::div";
  if (!is_sum && !is_product) return std::nullopt;
  if (node.has_argument("rounding_mode")) return std::nullopt;
  const std::size_t at = constant_tensor(node.input(0)) ? 1 : 0;  // the tensor's place
  const Value data = node.input(at);
  const SeenTensor* const image = find_image(data, seen);
  const auto result = seen.find(node.output());
  const auto alpha = alpha_of(node);
  if (image == nullptr || result == seen.end() || !alpha) return std::nullopt;
  if (result->second.sizes != image->sizes || result->second.scalar_type != image->scalar_type)
    return std::nullopt;
  const std::optional<at::Tensor> operand = as_vector(node.input(1 - at), *image);
  if (!operand) return std::nullopt;
  const auto constant = constant_tensor(node.input(1 - at));
  const bool is_per_channel = constant && constant->numel() > 1;
  const at::Tensor ones = at::ones_like(*operand), zeros = at::zeros_like(*operand);
  const Value src = data;
  if (kind == "aten::mul") return Affine{src, *operand, zeros, is_per_channel, 0};
  if (kind == "aten::div") {
    if (at == 1) return std::nullopt;
    return Affine{src, operand->reciprocal(), zeros, is_per_channel, 0};
  }
  // sign_a * a + sign_b * b
  const double sign_a = kind == "aten::rsub" ? -*alpha : 1.0;
  const double sign_b = kind == "aten::rsub" ? 1.0 : kind == "aten::sub" ? -*alpha : *alpha;
  const double of_src = at == 0 ? sign_a : sign_b, of_operand = at == 0 ? sign_b : sign_a;
  const at::Tensor shift = *operand * of_operand;
  return Affine{src, ones * of_src, shift, is_per_channel, largest(shift)};
}

}  // namespace

Affine compose(const Affine& last, const Affine& first) {
  // A normalization divides by the deviation, so the first scaling behind a difference shows how
  // large its results are. The scalings behind that one change terms and results alike.
  const bool is_difference = first.scale.abs().eq(1).all().item<bool>();
  const bool is_scaling = !last.shift.any().item<bool>();
  const at::Tensor shift = last.scale * first.shift;
  const double of_first = is_difference && is_scaling ? largest(shift) : first.cancellation;
  return {first.src, last.scale * first.scale, shift + last.shift,
          last.is_per_channel || first.is_per_channel, std::max(of_first, last.cancellation)};
}

std::optional<Affine> read_affine(Node node, const SeenTensors& seen) {
  std::optional<Affine> affine = read_any_affine(node, seen);
  const auto is_finite = [](const at::Tensor& numbers) {
    return numbers.isfinite().all().item<bool>();
  };
  return affine && is_finite(affine->scale) && is_finite(affine->shift) ? affine : std::nullopt;
}

}  // namespace torchalgo
