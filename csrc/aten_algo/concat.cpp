// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <ATen/ops/channel_shuffle.h>

#include <vector>

#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_concat(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<ConcatProblem>(problem)) return {{}, "runs concatenations only"};
  return offer_with_bf16("aten.concat", problem, device);
}

at::Tensor run_concat(const ConcatProblem& concat, const Primitive& primitive,
                      const KernelArgs& args) {
  std::vector<at::Tensor> src;
  src.reserve(args.src.size());
  for (const at::Tensor& tensor : args.src) src.push_back(to_strided(tensor, primitive.src));
  const at::Tensor dst = at::cat(src, 1);
  return concat.groups > 1 ? at::channel_shuffle(dst, concat.groups) : dst;
}

}  // namespace

Algorithm concat() {
  return strided_algorithm<ConcatProblem>("aten.concat", offer_concat, run_concat);
}

}  // namespace torchalgo::aten
