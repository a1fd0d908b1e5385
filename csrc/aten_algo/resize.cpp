// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <array>

#include "aten_algo/strided.h"
#include "provider/kernel.h"

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
  const at::Tensor dst = resize.kind == ResizeKind::kNearest
                             ? at::upsample_nearest2d(src, sizes)
                             : at::upsample_bilinear2d(src, sizes, resize.align_corners);
  return to_strided(dst, primitive.dst);
}

Kernel prepare_resize(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [resize = std::get<ResizeProblem>(problem), primitive](
                     const KernelArgs& args) { return run_resize(resize, primitive, args); },
          .makes_dst = true};
}

}  // namespace

Algorithm resize() {
  return {.name = "aten.resize",
          .version = 1,
          .runs_on_cuda = true,
          .offer = offer_resize,
          .prepare = prepare_resize,
          .is_fallback = true};
}

}  // namespace torchalgo::aten
