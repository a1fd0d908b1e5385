// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/pixel_shuffle.h>

#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_pixel_shuffle(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<PixelShuffleProblem>(problem))
    return {{}, "runs pixel shuffles only"};
  return offer_with_bf16("aten.pixel_shuffle", problem, device);
}

at::Tensor run_pixel_shuffle(const PixelShuffleProblem& shuffle, const Primitive& primitive,
                             const KernelArgs& args) {
  return at::pixel_shuffle(to_strided(args.src[0], primitive.src), shuffle.factor);
}

}  // namespace

Algorithm pixel_shuffle() {
  return strided_algorithm<PixelShuffleProblem>("aten.pixel_shuffle", offer_pixel_shuffle,
                                                run_pixel_shuffle);
}

}  // namespace torchalgo::aten
