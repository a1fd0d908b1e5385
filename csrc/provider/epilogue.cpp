// SPDX-License-Identifier: BSD-3-Clause
#include "provider/epilogue.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include <array>

#include "base/error.h"

namespace torchalgo {
namespace {

using at::Tensor;
using Numbers = std::array<double, 2>;  // of a post-op

// An activation by ATen, into new memory and in place.
struct Functions {
  Tensor (*make)(const Tensor& src, const Numbers& numbers);
  void (*apply)(Tensor& dst, const Numbers& numbers);
};

Functions functions_of(PostOp::Kind kind) {
  switch (kind) {
    case PostOp::kRelu:
      return {[](const Tensor& x, const Numbers&) { return at::relu(x); },
              [](Tensor& x, const Numbers&) { at::relu_(x); }};
    case PostOp::kRelu6:
      return {[](const Tensor& x, const Numbers&) { return at::hardtanh(x, 0, 6); },
              [](Tensor& x, const Numbers&) { at::hardtanh_(x, 0, 6); }};
    case PostOp::kHardswish:
      return {[](const Tensor& x, const Numbers&) { return at::hardswish(x); },
              [](Tensor& x, const Numbers&) { at::hardswish_(x); }};
    case PostOp::kSilu:
      return {[](const Tensor& x, const Numbers&) { return at::silu(x); },
              [](Tensor& x, const Numbers&) { at::silu_(x); }};
    case PostOp::kSigmoid:
      return {[](const Tensor& x, const Numbers&) { return at::sigmoid(x); },
              [](Tensor& x, const Numbers&) { at::sigmoid_(x); }};
    case PostOp::kHardsigmoid:
      return {[](const Tensor& x, const Numbers&) { return at::hardsigmoid(x); },
              [](Tensor& x, const Numbers&) { at::hardsigmoid_(x); }};
    case PostOp::kGelu:
      return {[](const Tensor& x, const Numbers&) { return at::gelu(x); },
              [](Tensor& x, const Numbers&) { at::gelu_(x); }};
    case PostOp::kGeluTanh:
      return {[](const Tensor& x, const Numbers&) { return at::gelu(x, "tanh"); },
              [](Tensor& x, const Numbers&) { at::gelu_(x, "tanh"); }};
    case PostOp::kMish:
      return {[](const Tensor& x, const Numbers&) { return at::mish(x); },
              [](Tensor& x, const Numbers&) { at::mish_(x); }};
    case PostOp::kTanh:
      return {[](const Tensor& x, const Numbers&) { return at::tanh(x); },
              [](Tensor& x, const Numbers&) { at::tanh_(x); }};
    case PostOp::kElu:
      return {[](const Tensor& x, const Numbers& numbers) { return at::elu(x, numbers[0]); },
              [](Tensor& x, const Numbers& numbers) { at::elu_(x, numbers[0]); }};
    case PostOp::kLeakyRelu:
      return {[](const Tensor& x, const Numbers& numbers) { return at::leaky_relu(x, numbers[0]); },
              [](Tensor& x, const Numbers& numbers) { at::leaky_relu_(x, numbers[0]); }};
    case PostOp::kClamp:
      return {[](const Tensor& x, const Numbers& numbers) {
                return at::clamp(x, numbers[0], numbers[1]);
              },
              [](Tensor& x, const Numbers& numbers) { at::clamp_(x, numbers[0], numbers[1]); }};
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  TORCHALGO_ASSERT(is_activation(kind));
  return {};
}

}  // namespace

at::Tensor activated(const at::Tensor& src, const PostOp& op) {
  return functions_of(op.kind).make(src, op.numbers);
}

void apply_activation(at::Tensor& dst, const PostOp& op) {
  functions_of(op.kind).apply(dst, op.numbers);
}

void apply_epilogue(at::Tensor& dst, const Epilogue& epilogue, const at::Tensor& bias,
                    const at::Tensor& residual) {
  for (const PostOp& op : epilogue) {
    if (op == PostOp::kBias) {
      at::DimVector sizes(dst.dim(), 1);
      sizes[1] = dst.size(1);
      dst.add_(bias.view(sizes));
    } else if (op == PostOp::kAdd) {
      dst.add_(residual);
    } else {
      apply_activation(dst, op);
    }
  }
}

}  // namespace torchalgo
