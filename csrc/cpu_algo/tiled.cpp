// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>

#include "cpu_algo/kernels/transform.h"
#include "ir/algorithm.h"
#include "ir/transform_shape.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kGrainFloats = 32768;  // of a thread, at least: as at::internal::GRAIN_SIZE

std::int64_t padded_channels(Layout layout, std::int64_t channels) {
  return element_count(layout, 1, channels, 1);
}

kernels::TensorView view_of(Layout layout, std::int64_t channels, std::int64_t pixels) {
  const std::int64_t image = element_count(layout, 1, channels, pixels);
  if (layout == Layout::kNchw) return {image, 1, pixels, 1, 0};
  if (untyped(layout) == Layout::kNhwc) return {image, channels, 0, channels, 1};
  const std::int64_t block = block_size(layout);
  return {image, block, block * pixels, block, 1};
}

Offer offer_tiled(const Problem& problem, const Device&) {
  if (std::string refusal = refuse_transform(problem); !refusal.empty()) return {{}, refusal};
  const auto& change = std::get<TransformProblem>(problem);
  const DType dtype = dtype_of(problem);
  if (dtype != DType::kF32) return {{}, fmt::format("needs f32, got {}", to_string(dtype))};
  return {{{"layout.tiled", change.from, change.to}}, {}};
}

kernels::Transform make_transform(const TransformProblem& problem, Layout from, Layout to) {
  kernels::Transform transform = {};
  transform.pixels = problem.d * problem.h * problem.w;
  transform.channels = problem.c;
  transform.src_view = view_of(from, problem.c, transform.pixels);
  transform.dst_view = view_of(to, problem.c, transform.pixels);
  transform.padded_channels = padded_channels(to, problem.c);
  // nhwc is read or written pixel by pixel, so that all of a cache line is used before it is
  // evicted.
  transform.channels_inner = untyped(from) == Layout::kNhwc || untyped(to) == Layout::kNhwc;
  transform.src_is_bf16 = is_typed(from);
  transform.dst_is_bf16 = is_typed(to);
  return transform;
}

using RunTransform = void (*)(const kernels::Transform&, std::int64_t, std::int64_t);

PlainKernel bind_tiled(const Problem& problem, const Primitive& primitive, RunTransform run) {
  const auto& change = std::get<TransformProblem>(problem);
  const kernels::Transform geometry = make_transform(change, primitive.src, primitive.dst);
  const std::int64_t groups =
      (geometry.padded_channels + kernels::kTransformChannels - 1) / kernels::kTransformChannels;
  const std::int64_t ranges =
      (geometry.pixels + kernels::kTransformPixels - 1) / kernels::kTransformPixels;
  const std::int64_t floats_per_task =
      kernels::kTransformChannels * std::min(geometry.pixels, kernels::kTransformPixels);
  const std::int64_t tasks = change.n * groups * ranges;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainFloats / floats_per_task);
  return {.run = [=](const RunArgs& args, const Threads& threads) {
    kernels::Transform transform = geometry;
    transform.src = args.src[0];
    transform.dst = args.dst;
    parallel_for(threads, tasks, grain,
                 [&](std::int64_t begin, std::int64_t end) { run(transform, begin, end); });
  }};
}

}  // namespace

// Makes the algorithm of our cache-blocked transposes and casts of f32 models, between any two
// layouts; 3-D between the strided ones.
Algorithm tiled(const std::string& isa) {
  return {.name = "layout.tiled",
          .rounding = 1,
          .offer = offer_tiled,
          .bind = [run = TORCHALGO_PICK_KERNEL(isa, run_transform)](
                      const Problem& problem, const Primitive& primitive, const Device&) {
            return bind_tiled(problem, primitive, run);
          }};
}

}  // namespace torchalgo::cpu
