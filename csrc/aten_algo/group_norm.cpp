// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/group_norm.h>

#include "aten_algo/strided.h"
#include "provider/kernel.h"

namespace torchalgo::aten {
namespace {

Offer offer_group_norm(const Problem& problem, const Device&) {
  const auto* norm = std::get_if<GroupNormProblem>(&problem);
  if (norm == nullptr) return {{}, "runs group norms only"};
  if (!norm->epilogue.empty()) return {{}, "ATen fuses nothing after a group norm"};
  return offer_strided("aten.group_norm");
}

at::Tensor run_group_norm(const GroupNormProblem& norm, const Primitive& primitive,
                          const KernelArgs& args) {
  // In nhwc, ATen computes a variance on the CPU as the mean of squares less the square of the
  // mean. It has no correct digit if the mean is 1e3 deviations.
  const Layout exact = args.src[0].is_cpu() ? Layout::kNchw : primitive.src;
  const at::Tensor src = to_strided(args.src[0], exact);
  const at::Tensor dst =
      at::group_norm(src, norm.groups, args.packed[0].weights, args.packed[0].bias, norm.epsilon);
  return to_strided(dst, primitive.dst);
}

Kernel prepare_group_norm(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [norm = std::get<GroupNormProblem>(problem), primitive](
                     const KernelArgs& args) { return run_group_norm(norm, primitive, args); },
          .pack = [](const Weights& weights) -> Packed { return weights; },
          .packed_bytes = [] { return 0; },  // the model's own
          .packing = to_string(primitive),
          .makes_dst = true};
}

}  // namespace

Algorithm group_norm() {
  return {.name = "aten.group_norm",
          .version = 2,
          .runs_on_cuda = true,
          .offer = offer_group_norm,
          .prepare = prepare_group_norm,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
