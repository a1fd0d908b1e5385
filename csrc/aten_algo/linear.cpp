// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/linear.h>

#include <optional>

#include "aten_algo/rows.h"
#include "aten_algo/strided.h"

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

Packed pack_linear(const Problem&, const Primitive&, const Weights& weights) {
  return {weights.weights, weights.bias};
}

at::Tensor run_linear(const Call& call) {
  const auto& linear = std::get<LinearProblem>(call.problem);
  std::optional<at::Tensor> bias;
  if (!linear.epilogue.empty()) bias = call.packed[1];
  const at::Tensor dst = at::linear(to_strided(call.src[0], Layout::kNchw), call.packed[0], bias);
  return to_strided(dst, Layout::kNchw);
}

}  // namespace

Algorithm linear() {
  return {.name = "aten.linear",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_linear,
          .pack = pack_linear,
          .packed_bytes = [](const Problem&, const Primitive&) { return std::int64_t{0}; },
          .run = run_linear,
          .makes_dst = true,
          .packs_for_all_sizes = true,
          .least_work = direct_work};
}

}  // namespace torchalgo::aten
