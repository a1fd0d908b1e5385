// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/epilogue.h"

#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include "base/error.h"

namespace torchalgo {

void apply_activation(at::Tensor& dst, PostOp op) {
  switch (op) {
    case PostOp::kRelu:
      at::relu_(dst);
      return;
    case PostOp::kRelu6:
      at::hardtanh_(dst, 0, 6);
      return;
    case PostOp::kHardswish:
      at::hardswish_(dst);
      return;
    case PostOp::kSilu:
      at::silu_(dst);
      return;
    case PostOp::kSigmoid:
      at::sigmoid_(dst);
      return;
    case PostOp::kHardsigmoid:
      at::hardsigmoid_(dst);
      return;
    case PostOp::kBias:
    case PostOp::kAdd:
      break;
  }
  TORCHALGO_ASSERT(is_activation(op));
}

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
