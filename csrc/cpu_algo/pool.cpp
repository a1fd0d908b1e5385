// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/pool.h"

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {

Algorithm pool(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.pool";
  algorithm.version = 2;
  algorithm.rounding = 1;
  algorithm.offer = [](const Problem& problem, const Device&) -> Offer {
    const auto* pool = std::get_if<PoolProblem>(&problem);
    if (pool == nullptr) return {{}, "needs a pooling"};
    return offer_f32("cpu.pool", pool->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
  };
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device& device) {
    return bind_pool(std::get<PoolProblem>(problem), primitive.src, isa, device.threads);
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
