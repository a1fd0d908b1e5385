// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/filter_division.h"
#include "cpu_algo/kernels/winograd_backward_filter.h"
#include "cpu_algo/winograd.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {
namespace {

using kernels::FilterBlocks;
using kernels::kBackwardFilterTile;
using kernels::TileBlock;

constexpr std::int64_t kFloatBytes = sizeof(float);
// A task has at most 8 x 8 blocks. Their sums are read and written in order.
constexpr std::int64_t kMostBlocks = 8;
// A part of the tiles has at least so many blocks, and its sums at most so many bytes.
constexpr std::int64_t kBlocksPerPart = 2;
constexpr std::int64_t kMostSumBytes = std::int64_t{5} << 19;
// Some 20 us of work: a thread that has less costs more than it saves.
constexpr std::int64_t kLeastWork = 4'000'000;

// All that a run needs but pointers. If there are many tiles and few channels, each worker has a
// part of the tiles with V, E and U of its own, and the U are added up in the end. Else there is
// one part: all workers transform a block of tiles, then they divide the channels.
struct Plan {
  kernels::Winograd src;
  kernels::WinogradBackwardFilter dst;
  FilterDivision division;
  std::int64_t tiles = 0, tile_blocks = 1;
  std::int64_t workers = 1, parts = 1;
  std::int64_t v_floats = 0, e_floats = 0;

  [[nodiscard]] TileBlock block(std::int64_t i) const {
    const std::int64_t begin = tiles * i / tile_blocks;
    return {begin, tiles * (i + 1) / tile_blocks - begin};
  }
  // Returns the floats of U of the largest task.
  [[nodiscard]] std::int64_t sum_floats() const {
    return kBackwardFilterTile.elements() * kernels::winograd_u_step(division.largest());
  }
  // Returns the floats of all U of a part. If its only block of tiles is the last one, each worker
  // needs one U only.
  [[nodiscard]] std::int64_t part_sum_floats() const {
    return (tile_blocks > 1 ? division.tasks() : workers) * sum_floats();
  }
  [[nodiscard]] std::int64_t workspace_bytes() const {
    return parts * (v_floats + e_floats + part_sum_floats()) * kFloatBytes;
  }
};

kernels::Winograd src_of(const ConvProblem& conv, Layout layout) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  kernels::Winograd src;
  src.c_blocks = channel_blocks(conv.c);
  src.src_side = winograd_side(layout, conv.c, conv.h * conv.w);
  src.h = conv.h;
  src.w = conv.w;
  src.pad_h = conv.pad_h;
  src.pad_w = conv.pad_w;
  src.tiles_h = ceil_div(dst[2], kBackwardFilterTile.h.m);
  src.tiles_w = ceil_div(dst[3], kBackwardFilterTile.w.m);
  return src;
}

kernels::WinogradBackwardFilter dst_of(const ConvProblem& conv, Layout layout) {
  const std::vector<std::int64_t> sizes = conv_dst_sizes(conv);
  kernels::WinogradBackwardFilter dst;
  dst.c_blocks = channel_blocks(conv.c);
  dst.k_blocks = channel_blocks(conv.k);
  dst.c = conv.c / conv.groups;
  dst.k = conv.k;
  dst.side = winograd_side(layout, conv.k, sizes[2] * sizes[3]);
  dst.p = sizes[2];
  dst.q = sizes[3];
  dst.tiles_h = ceil_div(dst.p, kBackwardFilterTile.h.m);
  dst.tiles_w = ceil_div(dst.q, kBackwardFilterTile.w.m);
  return dst;
}

Plan plan_of(const ConvProblem& conv, Layout layout, std::int64_t most_tiles,
             std::int64_t threads) {
  const std::int64_t tiles = winograd_tiles(kBackwardFilterTile, conv);
  const std::int64_t work =
      tiles * kBackwardFilterTile.elements() * (conv.c / conv.groups) * conv.k;
  const std::int64_t workers = std::clamp<std::int64_t>(work / kLeastWork, 1, threads);
  const std::int64_t tile_blocks = ceil_div(tiles, most_tiles);
  const std::int64_t sum_bytes =
      kBackwardFilterTile.elements() * (conv.c / conv.groups) * conv.k * kFloatBytes;
  const bool is_by_tiles =
      workers > 1 && tile_blocks >= kBlocksPerPart * workers && sum_bytes <= kMostSumBytes;
  Plan plan = {src_of(conv, layout), dst_of(conv, layout),
               FilterDivision(conv, kMostBlocks, is_by_tiles ? 1 : workers)};
  plan.tiles = tiles;
  plan.tile_blocks = tile_blocks;
  plan.parts = is_by_tiles ? workers : 1;
  plan.workers = workers;
  const std::int64_t largest = ceil_div(tiles, plan.tile_blocks);
  plan.v_floats =
      kBackwardFilterTile.elements() * kernels::winograd_v_step(plan.dst.c_blocks, largest);
  plan.e_floats =
      kBackwardFilterTile.elements() * kernels::winograd_v_step(plan.dst.k_blocks, largest);
  return plan;
}

struct Kernels {
  decltype(kernels::WinogradKernels::transform) transform_src;
  kernels::WinogradBackwardFilterKernels own;
};

// The memory of a part.
struct Part {
  float *v, *e, *sums;
};
Part part_at(const Plan& plan, void* workspace, std::int64_t i) {
  float* const v =
      static_cast<float*>(workspace) + i * (plan.v_floats + plan.e_floats + plan.part_sum_floats());
  return {v, v + plan.v_floats, v + plan.v_floats + plan.e_floats};
}

// Each worker transforms and multiplies its own tiles.
void run_by_tiles(const Plan& plan, const Kernels& kernels, void* workspace,
                  const Threads& threads) {
  const FilterDivision& division = plan.division;
  const kernels::WinogradBackwardFilter& dst = plan.dst;
  const std::int64_t parts = plan.parts;
  run_ranges_in_slices(threads, parts, parts, [&](std::int64_t i, std::int64_t, std::int64_t) {
    const Part part = part_at(plan, workspace, i);
    const std::int64_t begin = plan.tile_blocks * i / parts;
    for (std::int64_t own = begin; own < plan.tile_blocks * (i + 1) / parts; ++own) {
      const TileBlock block = plan.block(own);
      kernels.transform_src(plan.src, block, part.v, 0, dst.c_blocks);
      kernels.own.transform(dst, block, part.e, 0, dst.k_blocks);
      for (std::int64_t task = 0; task < division.tasks(); ++task) {
        kernels.own.multiply(dst, division.blocks(task), block.count, part.v, part.e,
                             part.sums + task * plan.sum_floats(), own == begin);
      }
    }
  });
  const Part first = part_at(plan, workspace, 0);
  const std::int64_t step = part_at(plan, workspace, 1).sums - first.sums;
  run_ranges_in_slices(threads, division.tasks(), plan.workers,
                       [&](std::int64_t task, std::int64_t, std::int64_t) {
                         const FilterBlocks blocks = division.blocks(task);
                         kernels.own.finish(dst, blocks, first.sums + task * plan.sum_floats(),
                                            parts, step, division.first_channel(blocks));
                       });
}

// All workers divide each block of tiles: its transforms, then the channels of the products.
void run_by_channels(const Plan& plan, const Kernels& kernels, void* workspace,
                     const Threads& threads) {
  const Part part = part_at(plan, workspace, 0);
  const FilterDivision& division = plan.division;
  const std::int64_t c_blocks = plan.dst.c_blocks;
  for (std::int64_t i = 0; i < plan.tile_blocks; ++i) {
    const TileBlock block = plan.block(i);
    const bool is_last = i == plan.tile_blocks - 1;
    run_ranges_in_slices(threads, c_blocks + plan.dst.k_blocks, plan.workers,
                         [&](std::int64_t begin, std::int64_t end, std::int64_t) {
                           if (begin < c_blocks) {
                             kernels.transform_src(plan.src, block, part.v, begin, end);
                           } else {
                             kernels.own.transform(plan.dst, block, part.e, begin - c_blocks,
                                                   end - c_blocks);
                           }
                         });
    run_ranges_in_slices(
        threads, division.tasks(), plan.workers,
        [&](std::int64_t task, std::int64_t, std::int64_t slice) {
          const FilterBlocks blocks = division.blocks(task);
          float* const u = part.sums + (plan.tile_blocks > 1 ? task : slice) * plan.sum_floats();
          kernels.own.multiply(plan.dst, blocks, block.count, part.v, part.e, u, i == 0);
          if (is_last)
            kernels.own.finish(plan.dst, blocks, u, 1, 0, division.first_channel(blocks));
        });
  }
}

void run(Plan plan, const Kernels& kernels, const RunArgs& args, const Threads& threads) {
  plan.src.src = args.src[0];
  plan.dst.diff_dst = args.src[1];
  plan.dst.diff_weights = args.dst;
  const auto run_part = plan.parts > 1 ? run_by_tiles : run_by_channels;
  run_part(plan, kernels, args.workspace, threads);
}

// Returns the bytes of the transformed tiles, of which at most `most_tiles` exist at a time.
std::int64_t tile_bytes(const ConvProblem& conv, std::int64_t most_tiles) {
  const Plan plan = plan_of(conv, Layout::kNChw16c, most_tiles, 1);
  return (plan.v_floats + plan.e_floats) * kFloatBytes;
}

// At most `most_tiles` tiles are transformed at a time. The bits of the result may depend on
// `threads`, but on nothing else.
PlainKernel make_kernel(const ConvProblem& conv, Layout layout, std::int64_t most_tiles,
                        std::string_view isa, std::int64_t threads) {
  const auto* const known = std::ranges::find(kernels::kWinogradTiles, kBackwardFilterTile);
  TORCHALGO_ASSERT(known != std::end(kernels::kWinogradTiles));
  const auto index = static_cast<int>(known - std::begin(kernels::kWinogradTiles));
  const Kernels picked = {TORCHALGO_PICK_KERNEL(isa, winograd_kernels)(index).transform,
                          TORCHALGO_PICK_KERNEL(isa, winograd_backward_filter_kernels)()};
  const Plan plan = plan_of(conv, layout, most_tiles, threads);
  return {.workspace_bytes = plan.workspace_bytes(),
          .run = [=](const RunArgs& args, const Threads& pool) { run(plan, picked, args, pool); }};
}

constexpr std::string_view kName = "cpu.winograd_f3x3_4x4";
// The tiles that are transformed at a time. With few of them they stay in L2, with many the sums
// are read and written less often. It depends on the shape which number is best.
constexpr std::int64_t kMostTiles[] = {64, 128, 256, 512};
constexpr std::int64_t kTileBytesLimit = std::int64_t{64} << 20;

std::string refusal_of(const ConvProblem& conv) {
  std::string refusal = refuse_backward_filter(conv);
  if (!refusal.empty()) return refusal;
  if (conv.r != 3 || conv.s != 3) {
    return fmt::format("needs a 3x3 filter, got {}x{}", conv.r, conv.s);
  }
  if (conv.stride_h != 1 || conv.stride_w != 1) {
    return fmt::format("needs stride 1, got {}x{}", conv.stride_h, conv.stride_w);
  }
  for (const auto refuse : {refuse_dilation, refuse_broken_groups}) {
    if (refusal = refuse(conv); !refusal.empty()) return refusal;
  }
  return {};
}

Offer offer_all(const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  Offer offer;
  for (const std::int64_t most : kMostTiles) {
    for (const Layout layout : {Layout::kNChw16c, Layout::kNhwc}) {
      const std::int64_t workspace =
          make_kernel(*conv, layout, most, device.isa, device.threads).workspace_bytes;
      offer.primitives.push_back({fmt::format("{}.t{}", kName, most), layout, layout, workspace});
    }
  }
  return offer;
}

// Offers the variants that may be the fastest.
Offer offer(const Problem& problem, const Device& device) {
  Offer all = offer_all(problem, device);
  if (!all.refusal.empty()) return all;
  const auto& conv = std::get<ConvProblem>(problem);
  if (std::string why = why_slow(kBackwardFilterTile, conv); !why.empty())
    return {{}, std::move(why)};
  const std::int64_t tiles = winograd_tiles(kBackwardFilterTile, conv);
  std::erase_if(all.primitives, [&](const Primitive& primitive) {
    const std::int64_t most = variant_number(primitive);
    // One block holds all tiles: equal to the variant of half the size.
    const bool is_equal = most > kMostTiles[0] && tiles <= most / 2;
    return is_equal || tile_bytes(conv, most) > kTileBytesLimit;
  });
  if (all.primitives.empty())
    all.refusal = fmt::format("needs more than {} MiB for its tiles", kTileBytesLimit >> 20);
  return all;
}

// Counts the products of the transformed tiles, as that of the forward algorithm.
Work least_work(const ConvProblem& conv) {
  const std::int64_t products =
      winograd_tiles(kBackwardFilterTile, conv) * kBackwardFilterTile.elements();
  return {2.0 * static_cast<double>(products) * static_cast<double>(conv.c / conv.groups * conv.k),
          least_bytes(conv)};
}

}  // namespace

// Makes the gradient with respect to weights by Winograd's F(3x3,4x4).
Algorithm winograd_backward_filter(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = kName;
  algorithm.rounding = 8;  // as cpu.winograd_f4x4_3x3, which has the same transforms
  algorithm.numerics = {"winograd"};
  algorithm.offer = offer;
  algorithm.offer_all = offer_all;
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device& device) {
    const auto& conv = std::get<ConvProblem>(problem);
    PlainKernel kernel =
        make_kernel(conv, primitive.src, variant_number(primitive), isa, device.threads);
    kernel.least_work = [=] { return least_work(conv); };
    return kernel;
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
