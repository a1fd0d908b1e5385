// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/padded_backward_filter.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {
namespace {

using kernels::DstRows;

constexpr std::int64_t kBlock = 16;
// Some 20 us of work: a thread that has less costs more than it saves.
constexpr std::int64_t kLeastWork = 2'000'000;
// The rows of all images are divided into parts, each with its own sums. Their number depends on
// the problem only, so that the result does as well. There are at least so many tasks.
constexpr std::int64_t kStemTasks = 16, kDepthwiseTasks = 32;
constexpr std::int64_t kCopyFloats = 6144;  // so that the copy stays in L1

// How the work is divided. A task is a part of the rows of one block of channels, or of all.
struct Plan {
  kernels::PaddedBackwardFilter conv;
  std::int64_t images = 1, rows = 1;  // rows of diff_dst per image, `rows` at a time
  std::int64_t blocks = 1;            // of channels, each a task; a task without blocks has all
  std::int64_t k_blocks = 1;
  std::int64_t parts = 1, workers = 1;
  std::int64_t sum_floats = 0, copy_floats = 0;

  [[nodiscard]] std::int64_t ranges_per_image() const { return ceil_div(conv.p, rows); }
  [[nodiscard]] DstRows range(std::int64_t i) const {
    const std::int64_t row = i % ranges_per_image();
    return {i / ranges_per_image(), row * rows, std::min(conv.p, (row + 1) * rows)};
  }
  [[nodiscard]] std::int64_t workspace_bytes() const {
    return (blocks * parts * sum_floats + workers * copy_floats) * std::int64_t{sizeof(float)};
  }
};

kernels::PixelSteps steps_of(Layout layout, std::int64_t channels, std::int64_t pixels) {
  if (layout == Layout::kNchw) return {channels * pixels, kBlock * pixels, 1, pixels};
  if (layout == Layout::kNhwc) return {channels * pixels, kBlock, channels, 1};
  return {channel_blocks(channels) * kBlock * pixels, kBlock * pixels, kBlock, 1};
}

kernels::PaddedBackwardFilter sizes_of(const ConvProblem& conv, Layout src, Layout dst) {
  kernels::PaddedBackwardFilter args;
  set_geometry(args, conv);
  args.src_steps = steps_of(src, conv.c, args.h * args.w);
  args.dst_steps = steps_of(dst, conv.k, args.p * args.q);
  args.c = conv.c;
  args.k = conv.k;
  return args;
}

// Divides the work into some `tasks` tasks. The copy has `channels` channels, and each part of a
// block `sums` sums.
Plan plan_of(const ConvProblem& conv, const kernels::PaddedBackwardFilter& args,
             std::int64_t channels, std::int64_t blocks, std::int64_t tasks, std::int64_t sums,
             std::int64_t threads) {
  Plan plan;
  plan.conv = args;
  plan.images = conv.n;
  while (plan.rows < args.p &&
         kernels::padded_pixels(args, plan.rows + 1) * channels <= kCopyFloats) {
    ++plan.rows;
  }
  plan.blocks = blocks;
  plan.k_blocks = channel_blocks(conv.k);
  const std::int64_t work =
      conv.n * args.p * args.q * conv.k * (conv.c / conv.groups) * conv.r * conv.s;
  plan.parts = std::clamp<std::int64_t>(std::min(ceil_div(tasks, blocks), work / kLeastWork), 1,
                                        conv.n * plan.ranges_per_image());
  plan.workers = std::clamp<std::int64_t>(work / kLeastWork, 1, threads);
  plan.sum_floats = sums;
  plan.copy_floats = ceil_div(kernels::padded_pixels(args, plan.rows) * channels, kBlock) * kBlock;
  return plan;
}

void run(Plan plan, const kernels::PaddedBackwardFilterKernels& kernels, const RunArgs& args,
         const Threads& threads) {
  plan.conv.src = args.src[0];
  plan.conv.diff_dst = args.src[1];
  plan.conv.diff_weights = args.dst;
  auto* const sums = static_cast<float*>(args.workspace);
  float* const copies = sums + plan.blocks * plan.parts * plan.sum_floats;
  const std::int64_t count = plan.images * plan.ranges_per_image(), parts = plan.parts;
  run_ranges_in_slices(threads, plan.blocks * parts, plan.workers,
                       [&](std::int64_t task, std::int64_t, std::int64_t slice) {
                         const std::int64_t part = task % parts;
                         const std::int64_t begin = count * part / parts;
                         for (std::int64_t i = begin; i < count * (part + 1) / parts; ++i) {
                           kernels.multiply(plan.conv, task / parts, plan.range(i),
                                            copies + slice * plan.copy_floats,
                                            sums + task * plan.sum_floats, i == begin);
                         }
                       });
  for (std::int64_t block = 0; block < plan.k_blocks; ++block) {
    const std::int64_t own = plan.blocks > 1 ? block : 0;
    kernels.finish(plan.conv, block, sums + own * parts * plan.sum_floats, parts, plan.sum_floats);
  }
}

PlainKernel bind(const Plan& plan, const kernels::PaddedBackwardFilterKernels& kernels) {
  return {.workspace_bytes = plan.workspace_bytes(),
          .run = [=](const RunArgs& args, const Threads& pool) { run(plan, kernels, args, pool); }};
}

// src lies in nchw or nhwc, and diff_dst in nChw16c. The result does not depend on the number of
// threads.
PlainKernel bind_stem(const ConvProblem& conv, Layout src, std::string_view isa,
                      std::int64_t threads) {
  const std::int64_t sums = channel_blocks(conv.k) * kBlock * conv.c * conv.r * conv.s;
  const kernels::PaddedBackwardFilter args = sizes_of(conv, src, Layout::kNChw16c);
  return bind(plan_of(conv, args, conv.c, 1, kStemTasks, sums, threads),
              TORCHALGO_PICK_KERNEL(isa, stem_backward_filter_kernels)());
}

// Both tensors lie in nChw16c or, with 16 channels or more, nhwc. The result does not depend on the
// number of threads.
PlainKernel bind_depthwise(const ConvProblem& conv, Layout layout, std::string_view isa,
                           std::int64_t threads) {
  const kernels::PaddedBackwardFilter args = sizes_of(conv, layout, layout);
  return bind(plan_of(conv, args, kBlock, channel_blocks(conv.c), kDepthwiseTasks,
                      conv.r * conv.s * kBlock, threads),
              TORCHALGO_PICK_KERNEL(isa, depthwise_backward_filter_kernels)());
}

constexpr std::string_view kStem = "cpu.stem_backward_filter";
constexpr std::string_view kDepthwise = "cpu.depthwise_backward_filter";
constexpr std::int64_t kMostChannels = 4;  // of a stem

std::string refuse_stem(const ConvProblem& conv) {
  if (conv.groups != 1) return fmt::format("needs 1 group, got {}", conv.groups);
  if (conv.c > kMostChannels)
    return fmt::format("needs at most {} input channels, got {}", kMostChannels, conv.c);
  return {};
}

std::string refuse_depthwise(const ConvProblem& conv) {
  if (conv.groups != conv.c || conv.k != conv.c) {
    return fmt::format("needs one filter per channel, got {} groups of {} to {} channels",
                       conv.groups, conv.c, conv.k);
  }
  return {};
}

PlainKernel bind_named(const ConvProblem& conv, const Primitive& primitive, std::string_view isa,
                       std::int64_t threads) {
  return primitive.name == kStem ? bind_stem(conv, primitive.src, isa, threads)
                                 : bind_depthwise(conv, primitive.src, isa, threads);
}

std::vector<Primitive> primitives_of(std::string_view name, const ConvProblem& conv) {
  const std::string text(name);
  if (name == kStem) {
    return {{text, Layout::kNchw, Layout::kNChw16c}, {text, Layout::kNhwc, Layout::kNChw16c}};
  }
  std::vector<Primitive> all = {{text, Layout::kNChw16c, Layout::kNChw16c}};
  // In nhwc the last block of 16 channels overlaps the block before it.
  if (conv.c >= kBlock) all.push_back({text, Layout::kNhwc, Layout::kNhwc});
  return all;
}

Offer offer(std::string_view name, const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  const auto refuse_own = name == kStem ? refuse_stem : refuse_depthwise;
  for (const auto refuse : {refuse_backward_filter, refuse_dilation, refuse_own}) {
    if (std::string refusal = refuse(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  }
  Offer offer = {primitives_of(name, *conv), {}};
  for (Primitive& primitive : offer.primitives) {
    primitive.workspace_bytes =
        bind_named(*conv, primitive, device.isa, device.threads).workspace_bytes;
  }
  return offer;
}

Algorithm make(std::string_view name, const std::string& isa) {
  return {.name = name,
          .rounding = 1,
          .offer = std::bind_front(offer, name),
          .bind = [isa](const Problem& problem, const Primitive& primitive, const Device& device) {
            const auto& conv = std::get<ConvProblem>(problem);
            PlainKernel kernel = bind_named(conv, primitive, isa, device.threads);
            kernel.least_work = [=] { return direct_work(problem); };
            return kernel;
          }};
}

}  // namespace

// Makes the gradients with respect to weights of first and of depthwise convolutions.
Algorithms padded_backward_filter(const std::string& isa) {
  return {make(kStem, isa), make(kDepthwise, isa)};
}

}  // namespace torchalgo::cpu
