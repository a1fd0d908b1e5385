// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/channel_shuffle.h>

#include "aten_algo/rows.h"
#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_shuffle(const Problem& problem, const Device&) {
  if (!std::holds_alternative<ShuffleProblem>(problem)) return {{}, "runs channel shuffles only"};
  return offer_strided("aten.shuffle");
}

at::Tensor run_shuffle(const Call& call) {
  const at::Tensor src = to_strided(call.src[0], call.primitive.src);
  const std::int64_t groups = std::get<ShuffleProblem>(call.problem).groups;
  return to_strided(at::channel_shuffle(src, groups), call.primitive.dst);
}

}  // namespace

Algorithm shuffle() {
  return {.name = "aten.shuffle",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_shuffle,
          .pack = nullptr,
          .run = run_shuffle,
          .makes_dst = true};
}

}  // namespace torchalgo::aten
