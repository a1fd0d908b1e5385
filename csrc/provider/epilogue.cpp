// SPDX-License-Identifier: BSD-3-Clause
#include "provider/epilogue.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "base/error.h"

namespace torchalgo {
namespace {

// An activation by ATen, into new memory and in place.
struct Functions {
  at::Tensor (*make)(const at::Tensor& src);
  void (*apply)(at::Tensor& dst);
};

Functions functions_of(PostOp op) {
  using at::Tensor;
  switch (op) {
    case PostOp::kRelu:
      return {[](const Tensor& x) { return at::relu(x); }, [](Tensor& x) { at::relu_(x); }};
    case PostOp::kRelu6:
      return {[](const Tensor& x) { return at::hardtanh(x, 0, 6); },
              [](Tensor& x) { at::hardtanh_(x, 0, 6); }};
    case PostOp::kHardswish:
      return {[](const Tensor& x) { return at::hardswish(x); },
              [](Tensor& x) { at::hardswish_(x); }};
    case PostOp::kSilu:
      return {[](const Tensor& x) { return at::silu(x); }, [](Tensor& x) { at::silu_(x); }};
    case PostOp::kSigmoid:
      return {[](const Tensor& x) { return at::sigmoid(x); }, [](Tensor& x) { at::sigmoid_(x); }};
    case PostOp::kHardsigmoid:
      return {[](const Tensor& x) { return at::hardsigmoid(x); },
              [](Tensor& x) { at::hardsigmoid_(x); }};
    case PostOp::kGelu:
      return {[](const Tensor& x) { return at::gelu(x); }, [](Tensor& x) { at::gelu_(x); }};
    case PostOp::kGeluTanh:
      return {[](const Tensor& x) { return at::gelu(x, "tanh"); },
              [](Tensor& x) { at::gelu_(x, "tanh"); }};
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  TORCHALGO_ASSERT(is_activation(op));
  return {};
}

}  // namespace

at::Tensor activated(const at::Tensor& src, PostOp op) { return functions_of(op).make(src); }

void apply_activation(at::Tensor& dst, PostOp op) { functions_of(op).apply(dst); }

void apply_epilogue(at::Tensor& dst, const Epilogue& epilogue, const at::Tensor& bias,
                    const at::Tensor& residual) {
  for (const PostOp op : epilogue) {
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
