// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/group_norm.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

// One moment takes about as long to add up as this many floats take to normalize.
constexpr std::int64_t kFloatsPerMoment = 8;

// Returns the size of a part: about a 16th of a column, so that there is work for several threads.
// Small parts would take long to add up. In large parts the pivot may be far from the mean.
std::int64_t part_size_of(std::int64_t column_size, std::int64_t numbers) {
  const std::int64_t most = 1024 * numbers, least = most / 4;
  return std::clamp(ceil_div(column_size, 16), least, most);
}

kernels::GroupNorm sizes_of(const GroupNormProblem& norm, Layout layout) {
  const LaneShape image = lane_shape(layout, 1, norm.c);
  kernels::GroupNorm sizes = {};
  sizes.blocks = image.groups;
  sizes.lanes = image.lanes;
  sizes.pixels = norm.h * norm.w;
  sizes.channels = norm.c;
  sizes.groups = norm.groups;
  const std::int64_t size = column_size(sizes);
  sizes.part_size = part_size_of(size, sizes.lanes == 1 ? 16 : 1);
  sizes.parts = ceil_div(size, sizes.part_size);
  sizes.epsilon = norm.epsilon;
  sizes.activation = activation_of(norm.epilogue);
  return sizes;
}

// Returns how many moments the images have.
std::int64_t moment_count(const GroupNormProblem& norm, const kernels::GroupNorm& sizes) {
  return norm.n * sizes.parts * columns_of(sizes);
}

std::int64_t workspace_bytes_of(const GroupNormProblem& norm, Layout layout) {
  const kernels::GroupNorm sizes = sizes_of(norm, layout);
  const std::int64_t factors = norm.n * 3 * sizes.blocks * sizes.lanes;
  return moment_count(norm, sizes) * std::int64_t{sizeof(kernels::Moments)} +
         factors * std::int64_t{sizeof(float)};
}

PlainKernel make_kernel(const GroupNormProblem& norm, Layout layout, std::string_view isa) {
  const kernels::GroupNorm sizes = sizes_of(norm, layout);
  const auto measure = TORCHALGO_PICK_KERNEL(isa, measure_groups);
  const auto find_factors = TORCHALGO_PICK_KERNEL(isa, find_group_factors);
  const auto normalize = TORCHALGO_PICK_KERNEL(isa, normalize_groups);
  const std::int64_t images = norm.n, moments = moment_count(norm, sizes);
  const std::int64_t parts = images * strips_of(sizes) * sizes.parts;
  const std::int64_t all_groups = images * sizes.groups;
  const std::int64_t all_pixels = images * sizes.blocks * sizes.pixels;
  PlainKernel kernel;
  kernel.workspace_bytes = workspace_bytes_of(norm, layout);
  kernel.run = [=](const RunArgs& args, const Threads& threads) {
    kernels::GroupNorm call = sizes;
    call.src = args.src[0];
    call.scale = args.weights[0].weights;
    call.shift = args.weights[0].bias;
    call.dst = args.dst;
    call.moments = static_cast<kernels::Moments*>(args.workspace);
    call.factors = reinterpret_cast<float*>(call.moments + moments);
    const auto run_in_parallel = [&](auto step, std::int64_t tasks, std::int64_t floats) {
      parallel_for(threads, tasks, grain_of(floats / tasks), step, call);
    };
    const std::int64_t floats = all_pixels * call.lanes;
    run_in_parallel(measure, parts, floats);
    run_in_parallel(find_factors, all_groups, moments * kFloatsPerMoment);
    run_in_parallel(normalize, all_pixels, floats);
  };
  return kernel;
}

Offer offer_group_norm(const Problem& problem, const Device&) {
  const auto* norm = std::get_if<GroupNormProblem>(&problem);
  if (norm == nullptr) return {{}, "needs a group norm"};
  if (!only_activation(norm->epilogue)) return {{}, "needs at most one activation to follow"};
  Offer offer =
      offer_f32("cpu.group_norm", norm->dtype, {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c});
  for (Primitive& primitive : offer.primitives)
    primitive.workspace_bytes = workspace_bytes_of(*norm, primitive.src);
  return offer;
}

}  // namespace

Algorithm group_norm(const std::string& isa) {
  return {.name = "cpu.group_norm",
          .version = 1,
          .rounding = 1,
          .offer = offer_group_norm,
          .bind = [isa](const Problem& problem, const Primitive& primitive, const Device&) {
            return make_kernel(std::get<GroupNormProblem>(problem), primitive.src, isa);
          }};
}

}  // namespace torchalgo::cpu
