// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/insert_layer.h"

#include <ATen/ops/zeros_like.h>

#include <string>
#include <vector>

#include "torchscript/constants.h"

namespace torchalgo {

using script::Node;
using script::Value;

at::Tensor filters_of(Node linear) {
  const at::Tensor weight = *constant_tensor(linear.input(1));
  return weight.reshape({weight.size(0), weight.size(1), 1, 1});
}

Value insert_convolution(const script::Builder& at, Node linear, Value image, Value filters) {
  const std::vector<std::int64_t> one = {1, 1}, zero = {0, 0};
  const Value ones = at.constant(one), zeros = at.constant(zero);
  return at.op("aten::conv2d",
               {image, filters, linear.input(2), ones, zeros, ones, std::int64_t{1}});
}

Value insert_channel_norm(const script::Builder& at, LayerNormKind kind, Value src,
                          const at::Tensor& scale, const at::Tensor& shift, double eps,
                          std::int64_t dim) {
  return at.call("torchalgo::channel_norm",
                 {src, std::string(to_string(kind)), scale.contiguous(),
                  shift.defined() ? shift : at::zeros_like(scale), eps, dim});
}

}  // namespace torchalgo
