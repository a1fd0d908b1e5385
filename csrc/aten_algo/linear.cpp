// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/linear.h>

#include <optional>

#include "aten_algo/strided.h"
#include "provider/kernel.h"

namespace torchalgo::aten {
namespace {

Offer offer_linear(const Problem& problem, const Device&) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr) return {{}, "runs linear layers only"};
  if (!linear->epilogue.empty() && linear->epilogue != Epilogue{PostOp::kBias}) {
    return {{}, "ATen linear fuses only the bias"};
  }
  return {{{"aten.linear", Layout::kNchw, Layout::kNchw, 0}}, {}};
}

at::Tensor run_linear(bool has_bias, const KernelArgs& args) {
  std::optional<at::Tensor> bias;
  if (has_bias) bias = args.packed[0].bias;
  const at::Tensor dst =
      at::linear(to_strided(args.src[0], Layout::kNchw), args.packed[0].weights, bias);
  return to_strided(dst, Layout::kNchw);
}

Kernel prepare_linear(const Problem& problem, const Primitive& primitive, const Device&) {
  const bool has_bias = !epilogue_of(problem).empty();
  return {.problem = problem,
          .primitive = primitive,
          .run = [has_bias](const KernelArgs& args) { return run_linear(has_bias, args); },
          .pack = [](const Weights& weights) -> Packed { return weights; },
          .packed_bytes = [] { return std::int64_t{0}; },
          .least_work = [problem] { return direct_work(problem); },
          .packing = to_string(primitive),
          .makes_dst = true};
}

}  // namespace

Algorithm linear() {
  return {.name = "aten.linear",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_linear,
          .prepare = prepare_linear,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
