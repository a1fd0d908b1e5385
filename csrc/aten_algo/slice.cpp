// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/strided.h"
#include "provider/kernel.h"
#include "provider/memory.h"

namespace torchalgo::aten {
namespace {

Offer offer_slice(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<SliceProblem>(problem)) return {{}, "runs slices only"};
  return offer_with_bf16("aten.slice", problem, device);
}

Kernel prepare_slice(const Problem& problem, const Primitive& primitive, const Device&) {
  const auto& slice = std::get<SliceProblem>(problem);
  return {.problem = problem,
          .primitive = primitive,
          .run = [begin = slice.begin, k = slice.k](const KernelArgs& args) {
            return args.dst.copy_(args.src[0].narrow(1, begin, k));
          }};
}

}  // namespace

Algorithm slice() {
  return {.name = "aten.slice",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_slice,
          .prepare = prepare_slice,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
