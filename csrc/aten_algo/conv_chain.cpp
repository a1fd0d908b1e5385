// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/convolution.h>

#include <utility>

#include "ir/algorithm.h"
#include "provider/epilogue.h"
#include "provider/kernel.h"
#include "provider/tensor_shape.h"
#include "provider/uneven_padding.h"

namespace torchalgo::aten {
namespace {

Offer offer_chain(const Problem& problem, const Device&) {
  if (!std::holds_alternative<ConvChainProblem>(problem)) return {{}, "runs chains only"};
  if (has(epilogue_of(problem), PostOp::kAdd)) return {{}, "fuses no residual"};
  return {{{"aten.conv_chain", Layout::kNchw, Layout::kNchw, 0}}, {}};
}

// Returns the result of one layer for the input x, without its epilogue.
at::Tensor run_core(const Problem& layer, const at::Tensor& x, const KernelArgs& args,
                    const at::Tensor& weights, const at::Tensor& bias) {
  if (const auto* conv = std::get_if<ConvProblem>(&layer)) {
    return at::convolution(with_uneven_padding(*conv, x), weights, /*bias=*/std::nullopt,
                           {conv->stride_h, conv->stride_w}, even_padding(*conv),
                           {conv->dilation_h, conv->dilation_w}, /*transposed=*/false,
                           /*output_padding=*/{0, 0}, conv->groups);
  }
  if (std::holds_alternative<PoolProblem>(layer)) return at::adaptive_avg_pool2d(x, {1, 1});
  if (std::holds_alternative<EltwiseProblem>(layer)) return x * args.src[1];
  return at::addcmul(bias.view({-1, 1, 1}), x, weights.view({-1, 1, 1}));
}

// Runs a chain by one call of ATen after the other.
at::Tensor run_chain(const ConvChainProblem& chain, const KernelArgs& args) {
  at::Tensor x = args.src[0];
  for (std::size_t i = 0; i < chain.layers.size(); ++i) {
    const auto& [weights, bias] = args.packed[i];
    at::Tensor result = run_core(chain.layers[i], x, args, weights, bias);
    apply_epilogue(result, epilogue_of(chain.layers[i]), bias, {});
    x = std::move(result);
  }
  return x.contiguous();
}

Kernel prepare_chain(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [chain = std::get<ConvChainProblem>(problem)](
                     const KernelArgs& args) { return run_chain(chain, args); },
          .pack = [](const Weights& weights) -> Packed { return weights; },
          .least_work = [problem] { return direct_work(problem); },
          .packing = to_string(primitive),
          .makes_dst = true};
}

}  // namespace

Algorithm conv_chain() {
  return {.name = "aten.conv_chain",
          .runs_on_cuda = true,
          .offer = offer_chain,
          .prepare = prepare_chain,
          .is_fallback = true,
          .is_last_resort = true};
}

}  // namespace torchalgo::aten
