// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <algorithm>

#include "aten_algo/strided.h"
#include "provider/epilogue.h"

namespace torchalgo::aten {
namespace {

Offer offer_eltwise(const Problem& problem, const Device& device) {
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem);
  if (eltwise == nullptr) return {{}, "runs element-wise operations only"};
  const Epilogue& epilogue = eltwise->epilogue;
  const bool is_activation_only = std::all_of(epilogue.begin(), epilogue.end(), is_activation);
  if (!is_activation_only) return {{}, "takes activations as its epilogue"};
  if (eltwise->kind == EltwiseKind::kActivation && epilogue.size() != 1) {
    return {{}, "needs exactly one activation"};
  }
  return offer_with_bf16("aten.eltwise", problem, device);
}

at::Tensor run_eltwise(const EltwiseProblem& eltwise, const Primitive& primitive,
                       const KernelArgs& args) {
  const at::Tensor first = to_strided(args.src[0], primitive.src);
  if (eltwise.kind == EltwiseKind::kActivation) {
    return activated(first, eltwise.epilogue[0]);
  }
  const at::Tensor second = to_strided(args.src[1], primitive.src);
  at::Tensor dst = eltwise.kind == EltwiseKind::kAdd   ? at::add(first, second)
                   : eltwise.kind == EltwiseKind::kMul ? at::mul(first, second)
                                                       : at::sub(first, second);
  for (const PostOp& op : eltwise.epilogue) apply_activation(dst, op);
  return dst;
}

}  // namespace

Algorithm eltwise() {
  return strided_algorithm<EltwiseProblem>("aten.eltwise", offer_eltwise, run_eltwise);
}

}  // namespace torchalgo::aten
