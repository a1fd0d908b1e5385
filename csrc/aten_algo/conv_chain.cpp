// SPDX-License-Identifier: BSD-3-Clause
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

// One call of ATen after the other.
at::Tensor run_chain(const Call& call) {
  at::Tensor x = call.src[0];
  std::size_t layer = 0;
  for (const ConvProblem& conv : std::get<ConvChainProblem>(call.problem).convs) {
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
