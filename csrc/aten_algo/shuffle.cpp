// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/channel_shuffle.h>

#include "aten_algo/strided.h"
#include "provider/kernel.h"

namespace torchalgo::aten {
namespace {

Offer offer_shuffle(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<ShuffleProblem>(problem)) return {{}, "runs channel shuffles only"};
  return offer_with_bf16("aten.shuffle", problem, device);
}

Kernel prepare_shuffle(const Problem& problem, const Primitive& primitive, const Device&) {
  return {
      .problem = problem,
      .primitive = primitive,
      .run =
          [groups = std::get<ShuffleProblem>(problem).groups, primitive](const KernelArgs& args) {
            const at::Tensor src = to_strided(args.src[0], primitive.src);
            return to_strided(at::channel_shuffle(src, groups), primitive.dst);
          },
      .makes_dst = true};
}

}  // namespace

Algorithm shuffle() {
  return {.name = "aten.shuffle",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_shuffle,
          .prepare = prepare_shuffle,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
