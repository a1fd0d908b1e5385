// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <ATen/ops/channel_shuffle.h>

#include <vector>

#include "aten_algo/strided.h"
#include "provider/kernel.h"

namespace torchalgo::aten {
namespace {

Offer offer_concat(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<ConcatProblem>(problem)) return {{}, "runs concatenations only"};
  return offer_with_bf16("aten.concat", problem, device);
}

at::Tensor run_concat(std::int64_t groups, const Primitive& primitive, const KernelArgs& args) {
  std::vector<at::Tensor> src;
  src.reserve(args.src.size());
  for (const at::Tensor& tensor : args.src) src.push_back(to_strided(tensor, primitive.src));
  at::Tensor dst = at::cat(src, 1);
  if (groups > 1) dst = at::channel_shuffle(dst, groups);
  return to_strided(dst, primitive.dst);
}

Kernel prepare_concat(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [groups = std::get<ConcatProblem>(problem).groups, primitive](
                     const KernelArgs& args) { return run_concat(groups, primitive, args); },
          .makes_dst = true};
}

}  // namespace

Algorithm concat() {
  return {.name = "aten.concat",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_concat,
          .prepare = prepare_concat,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
