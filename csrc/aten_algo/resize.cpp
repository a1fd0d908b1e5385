// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <array>

#include "aten_algo/rows.h"
#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_resize(const Problem& problem, const Device&) {
  if (!std::holds_alternative<ResizeProblem>(problem)) return {{}, "runs resizes only"};
  return offer_strided("aten.resize");
}

at::Tensor run_resize(const Call& call) {
  const auto& resize = std::get<ResizeProblem>(call.problem);
  const at::Tensor src = to_strided(call.src[0], call.primitive.src);
  const std::array<std::int64_t, 2> sizes = {resize.p, resize.q};
  const at::Tensor dst = resize.kind == ResizeKind::kNearest
                             ? at::upsample_nearest2d(src, sizes)
                             : at::upsample_bilinear2d(src, sizes, resize.align_corners);
  return to_strided(dst, call.primitive.dst);
}

}  // namespace

Algorithm resize() {
  return {.name = "aten.resize",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_resize,
          .pack = nullptr,
          .run = run_resize,
          .makes_dst = true};
}

}  // namespace torchalgo::aten
