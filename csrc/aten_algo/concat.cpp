// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <ATen/ops/channel_shuffle.h>

#include <vector>

#include "aten_algo/rows.h"
#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_concat(const Problem& problem, const Device&) {
  if (!std::holds_alternative<ConcatProblem>(problem)) return {{}, "runs concatenations only"};
  return offer_strided("aten.concat");
}

at::Tensor run_concat(const Call& call) {
  std::vector<at::Tensor> src;
  src.reserve(call.src.size());
  for (const at::Tensor& tensor : call.src) src.push_back(to_strided(tensor, call.primitive.src));
  const std::int64_t groups = std::get<ConcatProblem>(call.problem).groups;
  at::Tensor dst = at::cat(src, 1);
  if (groups > 1) dst = at::channel_shuffle(dst, groups);
  return to_strided(dst, call.primitive.dst);
}

}  // namespace

Algorithm concat() {
  return {.name = "aten.concat",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_concat,
          .pack = nullptr,
          .run = run_concat,
          .makes_dst = true};
}

}  // namespace torchalgo::aten
