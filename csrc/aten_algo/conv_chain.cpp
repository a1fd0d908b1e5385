// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/convolution.h>

#include <utility>

#include "aten_algo/epilogue.h"
#include "aten_algo/rows.h"
#include "aten_algo/tensor_shape.h"

namespace torchalgo::aten {
namespace {

Offer offer_chain(const Problem& problem, const Device&) {
  if (!std::holds_alternative<ConvChainProblem>(problem)) return {{}, "runs chains only"};
  if (has(epilogue_of(problem), PostOp::kAdd)) return {{}, "fuses no residual"};
  return {{{"aten.conv_chain", Layout::kNchw, Layout::kNchw, 0}}, {}};
}

Packed pack_chain(const Problem&, const Primitive&, const Weights& weights) {
  return tensors_of(weights);
}

at::Tensor run_head(const ChainHead& head, const Call& call) {
  if (std::holds_alternative<PoolProblem>(head))
    return at::adaptive_avg_pool2d(call.src[0], {1, 1});
  const bool is_product = std::holds_alternative<EltwiseProblem>(head);
  at::Tensor x = is_product ? call.src[0] * call.src[1]
                            : at::addcmul(call.packed[1].view({-1, 1, 1}), call.src[0],
                                          call.packed[0].view({-1, 1, 1}));
  apply_epilogue(x, epilogue_of(head), {}, {});
  return x;
}

// One call of ATen after the other.
at::Tensor run_chain(const Call& call) {
  const auto& chain = std::get<ConvChainProblem>(call.problem);
  at::Tensor x = chain.head ? run_head(*chain.head, call) : call.src[0];
  std::size_t layer = chain.head ? 2 : 0;
  for (const ConvProblem& conv : chain.convs) {
    at::Tensor result = at::convolution(
        x, call.packed[layer], /*bias=*/std::nullopt, {conv.stride_h, conv.stride_w},
        {conv.pad_h, conv.pad_w}, {conv.dilation_h, conv.dilation_w},
        /*transposed=*/false, /*output_padding=*/{0, 0}, conv.groups);
    apply_epilogue(result, conv.epilogue, call.packed[layer + 1], {});
    x = std::move(result);
    layer += 2;
  }
  return x.contiguous();
}

}  // namespace

Algorithm conv_chain() {
  return {.name = "aten.conv_chain",
          .runs_on_cuda = true,
          .offer = offer_chain,
          .pack = pack_chain,
          .run = run_chain,
          .makes_dst = true,
          .is_last_resort = true,
          .packs_for_all_sizes = true,
          .least_work = direct_work};
}

}  // namespace torchalgo::aten
