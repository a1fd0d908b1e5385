// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "cpu_algo/kernels/transform.h"
#include "layout_algo/rows.h"

namespace torchalgo::layout {
namespace {

constexpr std::int64_t kGrainFloats = 32768;  // of a thread, at least: as at::internal::GRAIN_SIZE

std::int64_t padded_channels(Layout layout, std::int64_t channels) {
  return element_count(layout, 1, channels, 1);
}

kernels::TensorView view_of(Layout layout, std::int64_t channels, std::int64_t pixels) {
  const std::int64_t image = element_count(layout, 1, channels, pixels);
  if (layout == Layout::kNchw) return {image, 1, pixels, 1, 0};
  if (layout == Layout::kNhwc) return {image, channels, 0, channels, 1};
  const std::int64_t block = block_size(layout);
  return {image, block, block * pixels, block, 1};
}

Offer offer_tiled(const Problem& problem, const Device&) {
  const LayoutPair pair = layout_pair(problem);
  if (!pair.refusal.empty()) return {{}, pair.refusal};
  const DType dtype = dtype_of(problem);
  if (dtype != DType::kF32) return {{}, fmt::format("needs f32, got {}", to_string(dtype))};
  return {{{"layout.tiled", pair.from, pair.to}}, {}};
}

kernels::Transform make_transform(const TransformProblem& problem, Layout from, Layout to) {
  kernels::Transform transform = {};
  transform.pixels = problem.d * problem.h * problem.w;
  transform.channels = problem.c;
  transform.src_view = view_of(from, problem.c, transform.pixels);
  transform.dst_view = view_of(to, problem.c, transform.pixels);
  transform.padded_channels = padded_channels(to, problem.c);
  transform.group = from == Layout::kNChw8c || to == Layout::kNChw8c ? 8 : 16;
  // nhwc is walked pixel by pixel, so that its cache lines are used up before they leave.
  transform.channels_inner = from == Layout::kNhwc || to == Layout::kNhwc;
  return transform;
}

}  // namespace

Algorithm tiled(const std::string& isa) {
  Algorithm row;
  row.name = "layout.tiled";
  row.offer = offer_tiled;
  row.run = [kernel = TORCHALGO_PICK_KERNEL(isa, run_transform)](const Call& call) {
    const auto& problem = std::get<TransformProblem>(call.problem);
    kernels::Transform transform = make_transform(problem, call.primitive.src, call.primitive.dst);
    transform.src = call.src[0].const_data_ptr<float>();
    transform.dst = call.dst.mutable_data_ptr<float>();
    const std::int64_t groups = (transform.padded_channels + transform.group - 1) / transform.group;
    const std::int64_t ranges =
        (transform.pixels + kernels::kTransformPixels - 1) / kernels::kTransformPixels;
    const std::int64_t floats_per_task =
        transform.group * std::min(transform.pixels, kernels::kTransformPixels);
    at::parallel_for(0, problem.n * groups * ranges,
                     std::max<std::int64_t>(1, kGrainFloats / floats_per_task),
                     [&](std::int64_t begin, std::int64_t end) { kernel(transform, begin, end); });
    return call.dst;
  };
  return row;
}

}  // namespace torchalgo::layout
