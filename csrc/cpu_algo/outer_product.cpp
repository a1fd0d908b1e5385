// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cpu_algo/conv.h"
#include "cpu_algo/filter_division.h"
#include "cpu_algo/kernels/direct_backward_filter.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {
namespace {

using kernels::FilterBlocks;
using kernels::ImageRows;

constexpr std::string_view kName = "cpu.outer_product";

// Some 20 us of work: a thread that has less costs more than it saves.
constexpr std::int64_t kLeastWork = 2'000'000;
// The pixels of diff_dst that are multiplied at a time. They stay in L1 and L2 for all taps.
constexpr std::int64_t kPixels = 128;
// If there are few blocks of channels, the images are divided too. The number of parts depends on
// the problem only, so that the sums do as well.
constexpr std::int64_t kFewBlocks = 8;
constexpr std::int64_t kBlock = 16;

// The rows of all images in ranges of some kPixels pixels: whole images, or rows of one.
struct RowRanges {
  std::int64_t images, rows;                  // in all
  std::int64_t image_ranges, rows_per_image;  // ranges of images, and ranges of rows in each

  explicit RowRanges(const ConvProblem& conv, std::int64_t p, std::int64_t q)
      : images(conv.n), rows(p) {
    image_ranges = ceil_div(images, std::max<std::int64_t>(1, kPixels / (p * q)));
    rows_per_image = ceil_div(rows, std::max<std::int64_t>(1, kPixels / q));
  }
  [[nodiscard]] std::int64_t count() const { return image_ranges * rows_per_image; }
  [[nodiscard]] ImageRows at(std::int64_t i) const {
    const std::int64_t image = i / rows_per_image, row = i % rows_per_image;
    return {images * image / image_ranges, images * (image + 1) / image_ranges,
            rows * row / rows_per_image, rows * (row + 1) / rows_per_image};
  }
};

struct Plan {
  kernels::DirectBackwardFilter conv;
  FilterDivision division;
  RowRanges ranges;
  std::int64_t parts = 1, workers = 1;
  // A 1x1 convolution with a stride reads few pixels of src. They are copied, unless copy_floats
  // is 0. `conv` then has the sizes of the copy, and `source` those of src.
  kernels::DirectBackwardFilter source = {};
  std::int64_t copy_floats = 0;

  [[nodiscard]] std::int64_t sum_floats() const {
    return division.largest().count() * conv.r * conv.s * 256;
  }
  // The sums of each part of each task are kept if there are several, else those of each worker.
  [[nodiscard]] std::int64_t workspace_bytes() const {
    const std::int64_t sums = parts > 1 ? parts * division.tasks() : workers;
    return (copy_floats + sums * sum_floats()) * std::int64_t{sizeof(float)};
  }
};

kernels::DirectBackwardFilter sizes_of(const ConvProblem& conv) {
  kernels::DirectBackwardFilter sizes;
  sizes.c_blocks = channel_blocks(conv.c);
  sizes.k_blocks = channel_blocks(conv.k);
  sizes.c = conv.c / conv.groups;
  sizes.k = conv.k;
  set_geometry(sizes, conv);
  return sizes;
}

Plan plan_of(const ConvProblem& conv, std::int64_t threads) {
  const kernels::DirectBackwardFilter sizes = sizes_of(conv);
  const std::int64_t work = conv.n * sizes.p * sizes.q * sizes.c * sizes.k * conv.r * conv.s;
  const std::int64_t workers = std::clamp<std::int64_t>(work / kLeastWork, 1, threads);
  // With one tap, more channels are read together, as each pixel is used once per block.
  const std::int64_t most = conv.r * conv.s == 1 ? 16 : 4;
  Plan plan = {sizes, FilterDivision(conv, most, workers), RowRanges(conv, sizes.p, sizes.q)};
  plan.workers = workers;
  const std::int64_t blocks =
      conv.groups * channel_blocks(sizes.c) * channel_blocks(conv.k / conv.groups);
  if (work >= 2 * kLeastWork)
    plan.parts = std::clamp<std::int64_t>(kFewBlocks / blocks, 1, plan.ranges.count());
  const bool is_unpadded = sizes.pad_h == 0 && sizes.pad_w == 0;
  if (conv.r * conv.s == 1 && sizes.stride_h * sizes.stride_w > 1 && is_unpadded) {
    plan.source = sizes;
    plan.conv.h = sizes.p;
    plan.conv.w = sizes.q;
    plan.conv.stride_h = plan.conv.stride_w = 1;
    plan.copy_floats = conv.n * sizes.c_blocks * sizes.p * sizes.q * kBlock;
  }
  return plan;
}

// Copies the pixels of src that a 1x1 convolution reads.
void copy_read(const Plan& plan, std::int64_t images, float* copy, const Threads& threads) {
  const kernels::DirectBackwardFilter& src = plan.source;
  const std::int64_t rows = images * src.c_blocks * src.p;
  run_ranges_in_slices(
      threads, tasks_for(plan.workers, rows), plan.workers,
      [&, tasks = tasks_for(plan.workers, rows)](std::int64_t task, std::int64_t, std::int64_t) {
        for (std::int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
          const std::int64_t y = row / src.p * src.h + row % src.p * src.stride_h;
          const float* const from = src.src + y * src.w * kBlock;
          for (std::int64_t x = 0; x < src.q; ++x) {
            std::copy_n(from + x * src.stride_w * kBlock, kBlock,
                        copy + (row * src.q + x) * kBlock);
          }
        }
      });
}

void multiply(const Plan& plan, const kernels::DirectBackwardFilterKernels& kernels,
              const FilterBlocks& blocks, std::int64_t part, float* sums) {
  const std::int64_t count = plan.ranges.count();
  const std::int64_t begin = count * part / plan.parts, end = count * (part + 1) / plan.parts;
  for (std::int64_t i = begin; i < end; ++i)
    kernels.multiply(plan.conv, blocks, plan.ranges.at(i), sums, i == begin);
}

void run(Plan plan, const kernels::DirectBackwardFilterKernels& kernels, const RunArgs& args,
         const Threads& threads) {
  plan.conv.src = args.src[0];
  plan.conv.diff_dst = args.src[1];
  plan.conv.diff_weights = args.dst;
  const FilterDivision& division = plan.division;
  auto* const copy = static_cast<float*>(args.workspace);
  float* const sums = copy + plan.copy_floats;
  if (plan.copy_floats > 0) {
    plan.source.src = args.src[0];
    copy_read(plan, plan.ranges.images, copy, threads);
    plan.conv.src = copy;
  }
  const std::int64_t step = plan.sum_floats(), parts = plan.parts;
  const auto finish = [&](const FilterBlocks& blocks, const float* own) {
    kernels.finish(plan.conv, blocks, own, parts, step, division.first_channel(blocks));
  };
  run_ranges_in_slices(threads, division.tasks() * parts, plan.workers,
                       [&](std::int64_t task, std::int64_t, std::int64_t slice) {
                         const FilterBlocks blocks = division.blocks(task / parts);
                         float* const own = sums + (parts > 1 ? task : slice) * step;
                         multiply(plan, kernels, blocks, task % parts, own);
                         if (parts == 1) finish(blocks, own);
                       });
  if (parts == 1) return;
  for (std::int64_t task = 0; task < division.tasks(); ++task)
    finish(division.blocks(task), sums + task * parts * step);
}

// The result does not depend on the number of threads.
PlainKernel make_kernel(const ConvProblem& conv, std::string_view isa, std::int64_t threads) {
  const Plan plan = plan_of(conv, threads);
  const auto kernels = TORCHALGO_PICK_KERNEL(isa, direct_backward_filter_kernels)();
  return {.workspace_bytes = plan.workspace_bytes(),
          .run = [=](const RunArgs& args, const Threads& pool) { run(plan, kernels, args, pool); },
          .least_work = [=] { return direct_work(conv); }};
}

std::string refusal_of(const ConvProblem& conv) {
  std::string refusal = refuse_backward_filter(conv);
  if (!refusal.empty()) return refusal;
  for (const auto refuse : {refuse_dilation, refuse_broken_groups}) {
    if (refusal = refuse(conv); !refusal.empty()) return refusal;
  }
  if (conv.r * conv.s > kernels::kMostBackwardFilterTaps) {
    return fmt::format("needs at most {} taps, got {}x{}", kernels::kMostBackwardFilterTaps, conv.r,
                       conv.s);
  }
  return {};
}

Offer offer(const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  const std::int64_t workspace = make_kernel(*conv, device.isa, device.threads).workspace_bytes;
  return {{{std::string(kName), Layout::kNChw16c, Layout::kNChw16c, workspace}}, {}};
}

}  // namespace

// Makes the gradient with respect to weights as sums of outer products.
Algorithm outer_product(const std::string& isa) {
  return {.name = kName,
          .rounding = 1,
          .offer = offer,
          .bind = [isa](const Problem& problem, const Primitive&, const Device& device) {
            return make_kernel(std::get<ConvProblem>(problem), isa, device.threads);
          }};
}

}  // namespace torchalgo::cpu
