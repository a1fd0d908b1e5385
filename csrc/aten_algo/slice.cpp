// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/rows.h"
#include "aten_algo/strided.h"
#include "provider/memory.h"

namespace torchalgo::aten {
namespace {

Offer offer_slice(const Problem& problem, const Device&) {
  if (!std::holds_alternative<SliceProblem>(problem)) return {{}, "runs slices only"};
  return offer_strided("aten.slice");
}

at::Tensor run_slice(const Call& call) {
  const auto& slice = std::get<SliceProblem>(call.problem);
  return call.dst.copy_(call.src[0].narrow(1, slice.begin, slice.k));
}

}  // namespace

Algorithm slice() {
  return {.name = "aten.slice",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_slice,
          .pack = nullptr,
          .run = run_slice};
}

}  // namespace torchalgo::aten
