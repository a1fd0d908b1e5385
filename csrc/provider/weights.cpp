// SPDX-License-Identifier: BSD-3-Clause
#include "provider/weights.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <set>

#include "base/error.h"
#include "base/product.h"

namespace torchalgo {
namespace {

LayerWeights zero_weights_of_layer(const Problem& problem) {
  const auto options = at::TensorOptions().dtype(scalar_type(dtype_of(problem)));
  const auto zeros = [&](const std::vector<std::int64_t>& sizes) {
    return sizes.empty() ? at::Tensor() : at::zeros(sizes, options);
  };
  return {zeros(weight_sizes(problem)), zeros(bias_sizes(problem))};
}

// An opaque tensor of oneDNN has no storage; torch tells its size by an op that is no public API.
std::int64_t mkldnn_bytes(const at::Tensor& tensor) {
  const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_nbytes", ""});
  TORCHALGO_CHECK(op,
                  "TA5007 held_bytes: this torch has no mkldnn::_nbytes: install a torch that has "
                  "it, such as 2.11");
  torch::jit::Stack stack = {tensor};
  op->callBoxed(stack);
  return stack.back().toInt();
}

}  // namespace

Weights zero_weights(const Problem& problem) {
  Weights weights;
  for (const Problem& layer : layers_of(problem)) weights.push_back(zero_weights_of_layer(layer));
  return weights;
}

std::int64_t held_bytes(const Packed& packed, const Weights& plain) {
  std::set<const void*> counted;
  for_each_tensor(plain, [&](const at::Tensor& tensor) {
    if (tensor.defined()) counted.insert(tensor.storage().data());
  });
  std::int64_t bytes = 0;
  for_each_tensor(packed, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.is_mkldnn()) {
      bytes += mkldnn_bytes(tensor);
    } else if (counted.insert(tensor.storage().data()).second) {
      bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
    }
  });
  return bytes;
}

std::int64_t plain_weight_bytes(const Problem& problem) {
  std::int64_t count = 0;
  for (const Problem& layer : layers_of(problem)) {
    const std::vector<std::int64_t> sizes = weight_sizes(layer);
    if (!sizes.empty()) count += product(sizes);
  }
  return count * static_cast<std::int64_t>(c10::elementSize(scalar_type(dtype_of(problem))));
}

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return at::kDouble;
    case DType::kF32:
    case DType::kTf32:
      return at::kFloat;
    case DType::kF16:
      return at::kHalf;
    case DType::kBf16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

}  // namespace torchalgo
