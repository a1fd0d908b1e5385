// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/channel_shuffle.h>

#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_shuffle(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<ShuffleProblem>(problem)) return {{}, "runs channel shuffles only"};
  return offer_with_bf16("aten.shuffle", problem, device);
}

at::Tensor run_shuffle(const ShuffleProblem& shuffle, const Primitive& primitive,
                       const KernelArgs& args) {
  return at::channel_shuffle(to_strided(args.src[0], primitive.src), shuffle.groups);
}

}  // namespace

Algorithm shuffle() {
  return strided_algorithm<ShuffleProblem>("aten.shuffle", offer_shuffle, run_shuffle);
}

}  // namespace torchalgo::aten
