// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/layer_norm.h"

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

Offer offer_layer_norm(const Problem& problem, const Device&) {
  const auto* norm = std::get_if<LayerNormProblem>(&problem);
  if (norm == nullptr) return {{}, "needs a norm over channels"};
  return offer_f32("cpu.layer_norm", norm->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
}

}  // namespace

Algorithm layer_norm(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.layer_norm";
  algorithm.version = 1;
  algorithm.rounding = 1;
  algorithm.offer = offer_layer_norm;
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device&) {
    return bind_layer_norm(std::get<LayerNormProblem>(problem), primitive.src, isa);
  };
  algorithm.packs_for_all_sizes = true;
  return algorithm;
}

}  // namespace torchalgo::cpu
