// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/convolution.h>

#include <utility>

#include "aten_algo/epilogue.h"
#include "provider/algorithm.h"
#include "provider/tensor_shape.h"

namespace torchalgo::aten {
namespace {

Offer offer_chain(const Problem& problem, const Device&) {
  if (!std::holds_alternative<ConvChainProblem>(problem)) return {{}, "runs chains only"};
  if (has(epilogue_of(problem), PostOp::kAdd)) return {{}, "fuses no residual"};
  return {{{"aten.conv_chain", Layout::kNchw, Layout::kNchw, 0}}, {}};
}

at::Tensor run_head(const ChainHead& head, const KernelArgs& args) {
  if (std::holds_alternative<PoolProblem>(head))
    return at::adaptive_avg_pool2d(args.src[0], {1, 1});
  const bool is_product = std::holds_alternative<EltwiseProblem>(head);
  at::Tensor x = is_product ? args.src[0] * args.src[1]
                            : at::addcmul(args.packed[1].view({-1, 1, 1}), args.src[0],
                                          args.packed[0].view({-1, 1, 1}));
  apply_epilogue(x, epilogue_of(head), {}, {});
  return x;
}

// One call of ATen after the other.
at::Tensor run_chain(const ConvChainProblem& chain, const KernelArgs& args) {
  at::Tensor x = chain.head ? run_head(*chain.head, args) : args.src[0];
  std::size_t layer = chain.head ? 2 : 0;
  for (const ConvProblem& conv : chain.convs) {
    at::Tensor result = at::convolution(
        x, args.packed[layer], /*bias=*/std::nullopt, {conv.stride_h, conv.stride_w},
        {conv.pad_h, conv.pad_w}, {conv.dilation_h, conv.dilation_w},
        /*transposed=*/false, /*output_padding=*/{0, 0}, conv.groups);
    apply_epilogue(result, conv.epilogue, args.packed[layer + 1], {});
    x = std::move(result);
    layer += 2;
  }
  return x.contiguous();
}

Kernel prepare_chain(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [chain = std::get<ConvChainProblem>(problem)](
                     const KernelArgs& args) { return run_chain(chain, args); },
          .pack =
              [](const Weights& weights) {
                Packed packed;
                for (const LayerWeights& layer : weights) {
                  packed.push_back(layer.weights);
                  packed.push_back(layer.bias);
                }
                return packed;
              },
          .least_work = [problem, primitive] { return direct_work(problem, primitive); },
          .makes_dst = true};
}

}  // namespace

Algorithm conv_chain() {
  return {.name = "aten.conv_chain",
          .runs_on_cuda = true,
          .offer = offer_chain,
          .prepare = prepare_chain,
          .is_fallback = true,
          .is_last_resort = true,
          .packs_for_all_sizes = true};
}

}  // namespace torchalgo::aten
