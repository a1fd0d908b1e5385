// SPDX-License-Identifier: BSD-3-Clause
#include "provider/epilogue.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>

#include "base/error.h"

namespace torchalgo {
namespace {

using at::Tensor;

// An activation by ATen, with the numbers a and b of the post-op.
struct Functions {
  Tensor (*make)(const Tensor& x, double a, double b);
  void (*apply)(Tensor& x, double a, double b);  // in place
  Tensor (*gradient)(const Tensor& diff, const Tensor& x, double a, double b);
};

// ATen's gradients of ReLU6, clamp and hardswish are not used. If x is a NaN, the place in the
// tensor decides whether their result is a NaN.
Functions functions_of(PostOp::Kind kind) {
  switch (kind) {
    case PostOp::kRelu:
      return {[](const Tensor& x, double, double) { return at::relu(x); },
              [](Tensor& x, double, double) { at::relu_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::threshold_backward(diff, x, 0);
              }};
    case PostOp::kRelu6:
      return {[](const Tensor& x, double, double) { return at::hardtanh(x, 0, 6); },
              [](Tensor& x, double, double) { at::hardtanh_(x, 0, 6); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return diff.masked_fill(x.le(0).logical_or(x.ge(6)), 0);
              }};
    case PostOp::kClamp:
      return {[](const Tensor& x, double a, double b) { return at::clamp(x, a, b); },
              [](Tensor& x, double a, double b) { at::clamp_(x, a, b); },
              [](const Tensor& diff, const Tensor& x, double a, double b) {
                return diff.masked_fill(x.le(a).logical_or(x.ge(b)), 0);
              }};
    case PostOp::kHardswish:
      return {[](const Tensor& x, double, double) { return at::hardswish(x); },
              [](Tensor& x, double, double) { at::hardswish_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::where(x.gt(3), diff, (diff * (x / 3 + 0.5)).masked_fill(x.lt(-3), 0));
              }};
    case PostOp::kSilu:
      return {[](const Tensor& x, double, double) { return at::silu(x); },
              [](Tensor& x, double, double) { at::silu_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::silu_backward(diff, x);
              }};
    case PostOp::kSigmoid:
      return {[](const Tensor& x, double, double) { return at::sigmoid(x); },
              [](Tensor& x, double, double) { at::sigmoid_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::sigmoid_backward(diff, x.sigmoid());
              }};
    case PostOp::kHardsigmoid:
      return {[](const Tensor& x, double, double) { return at::hardsigmoid(x); },
              [](Tensor& x, double, double) { at::hardsigmoid_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::hardsigmoid_backward(diff, x);
              }};
    case PostOp::kGelu:
      return {[](const Tensor& x, double, double) { return at::gelu(x); },
              [](Tensor& x, double, double) { at::gelu_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::gelu_backward(diff, x);
              }};
    case PostOp::kGeluTanh:
      return {[](const Tensor& x, double, double) { return at::gelu(x, "tanh"); },
              [](Tensor& x, double, double) { at::gelu_(x, "tanh"); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::gelu_backward(diff, x, "tanh");
              }};
    case PostOp::kMish:
      return {[](const Tensor& x, double, double) { return at::mish(x); },
              [](Tensor& x, double, double) { at::mish_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::mish_backward(diff, x);
              }};
    case PostOp::kTanh:
      return {[](const Tensor& x, double, double) { return at::tanh(x); },
              [](Tensor& x, double, double) { at::tanh_(x); },
              [](const Tensor& diff, const Tensor& x, double, double) {
                return at::tanh_backward(diff, x.tanh());
              }};
    case PostOp::kElu:
      return {[](const Tensor& x, double a, double) { return at::elu(x, a); },
              [](Tensor& x, double a, double) { at::elu_(x, a); },
              [](const Tensor& diff, const Tensor& x, double a, double) {
                return at::elu_backward(diff, a, 1, 1, /*is_result=*/false, x);
              }};
    case PostOp::kLeakyRelu:
      return {[](const Tensor& x, double a, double) { return at::leaky_relu(x, a); },
              [](Tensor& x, double a, double) { at::leaky_relu_(x, a); },
              [](const Tensor& diff, const Tensor& x, double a, double) {
                return at::leaky_relu_backward(diff, x, a, /*self_is_result=*/false);
              }};
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  TORCHALGO_ASSERT(is_activation(kind));
  return {};
}

}  // namespace

at::Tensor activated(const at::Tensor& src, const PostOp& op) {
  return functions_of(op.kind).make(src, op.numbers[0], op.numbers[1]);
}

void apply_activation(at::Tensor& dst, const PostOp& op) {
  functions_of(op.kind).apply(dst, op.numbers[0], op.numbers[1]);
}

at::Tensor activation_gradient(const at::Tensor& diff_dst, const at::Tensor& x, const PostOp& op) {
  return functions_of(op.kind).gradient(diff_dst, x, op.numbers[0], op.numbers[1]);
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
