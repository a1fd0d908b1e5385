// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <array>

#include "aten_algo/strided.h"

namespace torchalgo::aten {
namespace {

Offer offer_resize(const Problem& problem, const Device& device) {
  if (!std::holds_alternative<ResizeProblem>(problem)) return {{}, "runs resizes only"};
  return offer_with_bf16("aten.resize", problem, device);
}

at::Tensor run_resize(const ResizeProblem& resize, const Primitive& primitive,
                      const KernelArgs& args) {
  const at::Tensor src = to_strided(args.src[0], primitive.src);
  const std::array<std::int64_t, 2> sizes = {resize.p, resize.q};
  return resize.kind == ResizeKind::kNearest
             ? at::upsample_nearest2d(src, sizes)
             : at::upsample_bilinear2d(src, sizes, resize.align_corners);
}

}  // namespace

Algorithm resize() {
  return strided_algorithm<ResizeProblem>("aten.resize", offer_resize, run_resize);
}

}  // namespace torchalgo::aten
