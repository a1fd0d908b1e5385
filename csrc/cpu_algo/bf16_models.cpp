// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/bf16_models.h"

#include <functional>
#include <type_traits>
#include <utility>
#include <variant>

namespace torchalgo::cpu {
namespace {

using OfferOf = std::function<Offer(const Problem&, const Device&)>;

// Returns the primitives between tensors in nhwc.bf16, with the names that these have in a model in
// bf16. If there are none, it is the algorithm's own answer.
Offer offer_of(const OfferOf& own, const Problem& problem, const Device& device) {
  if (dtype_of(problem) != DType::kBf16) return own(problem, device);
  Offer of_f32 = own(with_dtype(problem, DType::kF32), device), offer;
  for (std::size_t i = 0; i < of_f32.primitives.size(); ++i) {
    Primitive& primitive = of_f32.primitives[i];
    if (primitive.src != Layout::kNhwcBf16 || primitive.dst != Layout::kNhwcBf16) continue;
    primitive.src = primitive.dst = Layout::kNhwc;
    offer.primitives.push_back(std::move(primitive));
    if (!of_f32.traits.empty()) offer.traits.push_back(std::move(of_f32.traits[i]));
  }
  return offer.primitives.empty() ? own(problem, device) : offer;
}

}  // namespace

Problem with_dtype(const Problem& problem, DType dtype) {
  Problem result = problem;
  std::visit(
      [&]<typename P>(P& p) {
        if constexpr (std::is_same_v<P, ConvChainProblem>) {
          for (Problem& layer : p.layers) layer = with_dtype(layer, dtype);
        } else if constexpr (std::is_same_v<P, PoolGradientProblem>) {
          p.pool.dtype = dtype;
        } else {
          p.dtype = dtype;
        }
      },
      result);
  return result;
}

void serve_bf16_models(Algorithm& algorithm) {
  if (!algorithm.bind) return;
  algorithm.offer = [own = std::move(algorithm.offer)](const Problem& problem,
                                                       const Device& device) {
    return offer_of(own, problem, device);
  };
  if (algorithm.offer_all) {
    algorithm.offer_all = [own = std::move(algorithm.offer_all)](const Problem& problem,
                                                                 const Device& device) {
      return offer_of(own, problem, device);
    };
  }
  algorithm.bind = [own = std::move(algorithm.bind)](
                       const Problem& problem, const Primitive& primitive, const Device& device) {
    if (dtype_of(problem) != DType::kBf16) return own(problem, primitive, device);
    Primitive typed = primitive;
    typed.src = typed.dst = Layout::kNhwcBf16;
    return own(with_dtype(problem, DType::kF32), typed, device);
  };
}

}  // namespace torchalgo::cpu
