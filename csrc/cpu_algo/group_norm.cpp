// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/group_norm.h"

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

Offer offer_group_norm(const Problem& problem, const Device&) {
  const auto* norm = std::get_if<GroupNormProblem>(&problem);
  if (norm == nullptr) return {{}, "needs a group norm"};
  if (!only_activation(norm->epilogue)) return {{}, "needs at most one activation to follow"};
  Offer offer =
      offer_f32("cpu.group_norm", norm->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
  for (Primitive& primitive : offer.primitives)
    primitive.workspace_bytes = group_norm_workspace_bytes(*norm, primitive.src);
  return offer;
}

}  // namespace

Algorithm group_norm(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.group_norm";
  algorithm.version = 1;
  algorithm.rounding = 1;
  algorithm.offer = offer_group_norm;
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device&) {
    return bind_group_norm(std::get<GroupNormProblem>(problem), primitive.src, isa);
  };
  algorithm.packs_for_all_sizes = true;
  return algorithm;
}

}  // namespace torchalgo::cpu
