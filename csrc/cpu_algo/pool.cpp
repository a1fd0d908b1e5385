// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/pool.h"

#include "cpu_algo/same_layout.h"
#include "cpu_algo/with_tensors.h"

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
  algorithm.prepare = [isa](const Problem& problem, const Primitive& primitive,
                            const Device& device) {
    const auto& pool = std::get<PoolProblem>(problem);
    return with_tensors(bind_pool(pool, primitive.src, isa, device.threads), problem, primitive);
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
