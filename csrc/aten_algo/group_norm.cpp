// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/group_norm.h>

#include "aten_algo/strided.h"

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
  return at::group_norm(src, norm.groups, args.packed[0].weights, args.packed[0].bias,
                        norm.epsilon);
}

}  // namespace

Algorithm group_norm() {
  Algorithm algorithm =
      strided_algorithm<GroupNormProblem>("aten.group_norm", offer_group_norm, run_group_norm);
  algorithm.version = 2;
  return algorithm;
}

}  // namespace torchalgo::aten
