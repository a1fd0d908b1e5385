// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/winograd.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/error.h"
#include "cpu_algo/kernels/winograd_weights.h"
#include "standalone/conv.h"

namespace torchalgo::cpu {
namespace {

using kernels::WinogradAxis;
using kernels::WinogradTile;

constexpr std::int64_t kBlock = 16;

// Two blocks of 16 output channels a panel fill the AVX-512 registers together with 14 tiles; with
// AVX2 one block and 6 tiles do.
std::int64_t panel_blocks_of(std::string_view isa) { return isa == "avx512" ? 2 : 1; }
constexpr std::int64_t kMaxPanelBlocks = 2;

// A block of tiles as equal in size as its siblings; 49 tiles in blocks of at most 28: 25 and 24.
struct Blocking {
  std::int64_t tiles = 0;
  std::int64_t count = 0;
  Blocking(std::int64_t of, std::int64_t max_tiles) : tiles(of), count(ceil_div(of, max_tiles)) {}
  [[nodiscard]] std::int64_t largest() const { return ceil_div(tiles, count); }
  [[nodiscard]] kernels::TileBlock block(std::int64_t i) const {
    const std::int64_t begin = tiles * i / count;
    return {begin, tiles * (i + 1) / count - begin};
  }
};

// Floats of V, of M and of the chunk table, each a multiple of 16.
struct Scratch {
  std::int64_t v = 0, m = 0, chunks = 0;
  Scratch(const WinogradTile& tile, std::int64_t c_blocks, std::int64_t tiles)
      : v(tile.elements() * kernels::winograd_v_step(c_blocks, tiles)),
        m(tile.elements() * kernels::winograd_m_step(kMaxPanelBlocks, tiles)),
        chunks(ceil_div(2 * c_blocks, 16) * 16) {}
  [[nodiscard]] std::int64_t floats() const { return v + m + chunks; }
  [[nodiscard]] std::int64_t bytes() const { return floats() * std::int64_t{sizeof(float)}; }
};

// The transform of r taps, each `step` after the other, into m + r - 1 elements: the taps'
// polynomial at the interpolation points, each value divided by the product of its point's
// differences to the others.
void transform_taps(int m, int r, const double* taps, std::int64_t step, double* out) {
  const int size = m + r - 1;
  const kernels::WinogradPoints points = kernels::winograd_points(size);
  double scale = 1;
  for (int pair = 0; pair < points.pairs; ++pair) scale *= -points.p[pair] * points.p[pair];
  out[0] = taps[0] / scale;
  for (int pair = 0; pair < points.pairs; ++pair) {
    const double p = points.p[pair];
    double even = 0, odd = 0, power = 1;
    for (int i = 0; i < r; ++i) {
      (i % 2 == 0 ? even : odd) += power * taps[i * step];
      power *= p;
    }
    scale = 2 * p * p;
    for (int other = 0; other < points.pairs; ++other)
      if (other != pair) scale *= p * p - points.p[other] * points.p[other];
    out[2 * pair + 1] = (even + odd) / scale;
    out[2 * pair + 2] = (even - odd) / scale;
  }
  out[size - 1] = taps[(r - 1) * step];
}

// Into axis.weights() elements.
void transform_axis(const WinogradAxis& axis, const double* taps, std::int64_t step, double* out) {
  if (axis.stride == 2) {
    transform_taps(axis.m, axis.r - 1, taps, 2 * step, out);
    out[axis.m + 1] = taps[step];
  } else {
    transform_taps(axis.m, axis.r, taps, step, out);
  }
}

// The matrix [axis.weights(), axis.r] of the transform of filters.
std::vector<double> filter_matrix(const WinogradAxis& axis) {
  const int size = axis.weights();
  std::vector<double> matrix(static_cast<std::size_t>(size) * axis.r);
  for (int tap = 0; tap < axis.r; ++tap) {
    std::vector<double> taps(axis.r, 0.0), column(size);
    taps[tap] = 1;
    transform_axis(axis, taps.data(), 1, column.data());
    for (int i = 0; i < size; ++i) matrix[static_cast<std::size_t>(i) * axis.r + tap] = column[i];
  }
  return matrix;
}

using TransformWeights = decltype(&kernels::default_isa::transform_winograd_weights);

// The kernel that packs weights, and the matrices that it reads.
struct Packing {
  TransformWeights transform = nullptr;
  std::vector<double> by_row, by_column;
};

// The sizes of a run; without pointers.
kernels::Winograd geometry_of(const WinogradVariant& winograd, const ConvProblem& conv,
                              std::int64_t panel_blocks) {
  const WinogradTile& tile = winograd.tile;
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  kernels::Winograd args = {};
  args.c_blocks = channel_blocks(conv.c);
  args.k_blocks = channel_blocks(conv.k);
  args.groups = conv.groups;
  args.panel_blocks = panel_blocks;
  args.src_side = winograd_side(winograd.layout, conv.c, conv.h * conv.w);
  args.dst_side = winograd_side(winograd.layout, conv.k, dst[2] * dst[3]);
  if (is_blocked(winograd.layout)) args.pad_lanes = args.k_blocks * kBlock - conv.k;
  args.h = conv.h;
  args.w = conv.w;
  args.p = dst[2];
  args.q = dst[3];
  args.pad_h = conv.pad_h;
  args.pad_w = conv.pad_w;
  args.tiles_h = ceil_div(dst[2], tile.h.m);
  args.tiles_w = ceil_div(dst[3], tile.w.m);
  args.activation = activation_of(conv.epilogue);
  return args;
}

// How the tiles are divided among threads.
struct Division {
  Blocking blocking;
  Scratch scratch;
  std::int64_t workers;
  bool is_by_blocks;  // else by panels of output channels

  Division(const WinogradTile& tile, const kernels::Winograd& args, std::int64_t tiles,
           std::int64_t max_tiles, std::int64_t threads)
      : blocking(tiles, max_tiles),
        scratch(tile, args.c_blocks, blocking.largest()),
        workers(threads) {
    const std::int64_t panels = kernels::winograd_panels(args);
    is_by_blocks = blocking.count >= workers || panels < workers;
    // A multiple of the workers, so that they end together.
    if (is_by_blocks)
      blocking.count = std::min(ceil_div(blocking.count, workers) * workers, blocking.tiles);
  }
};

// Each worker owns a slice of the workspace and a run of the blocks.
void run_by_blocks(const kernels::Winograd& args, const kernels::WinogradKernels& kernel,
                   const Division& division, float* workspace, const Threads& threads) {
  const Blocking& blocking = division.blocking;
  const Scratch& scratch = division.scratch;
  const std::int64_t workers = division.workers;
  const std::int64_t panels = kernels::winograd_panels(args);
  run_in_slices(threads, blocking.count, workers, [&](const auto& next, std::int64_t slice) {
    float* v = workspace + slice * scratch.floats();
    float* m = v + scratch.v;
    for (std::int64_t i = next(); i >= 0; i = next()) {
      const kernels::TileBlock block = blocking.block(i);
      kernel.transform(args, block, v, 0, args.c_blocks);
      kernel.multiply(args, block, v, m, m + scratch.m, 0, panels);
    }
  });
}

// All workers share V and divide the output channels, so that each streams its part of the weights.
void run_by_panels(const kernels::Winograd& args, const kernels::WinogradKernels& kernel,
                   const Division& division, float* workspace, const Threads& threads) {
  const Blocking& blocking = division.blocking;
  const Scratch& scratch = division.scratch;
  const std::int64_t workers = division.workers;
  const std::int64_t panels = kernels::winograd_panels(args);
  float* v = workspace;
  for (std::int64_t i = 0; i < blocking.count; ++i) {
    const kernels::TileBlock block = blocking.block(i);
    run_ranges_in_slices(threads, args.c_blocks, workers,
                         [&](std::int64_t begin, std::int64_t end, std::int64_t) {
                           kernel.transform(args, block, v, begin, end);
                         });
    run_ranges_in_slices(threads, panels, workers,
                         [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                           float* m = v + scratch.v + slice * (scratch.m + scratch.chunks);
                           kernel.multiply(args, block, v, m, m + scratch.m, begin, end);
                         });
  }
}

void run(const kernels::Winograd& geometry, const kernels::WinogradKernels& kernels,
         const Division& division, const RunArgs& args, const Threads& threads) {
  kernels::Winograd winograd = geometry;
  winograd.src = args.src[0];
  winograd.weights = args.weights[0].weights;
  winograd.bias = args.weights[0].bias;
  winograd.residual = args.residual;
  winograd.dst = args.dst;
  const auto run_part = division.is_by_blocks ? run_by_blocks : run_by_panels;
  run_part(winograd, kernels, division, static_cast<float*>(args.workspace), threads);
}

std::int64_t floats_per_k_block(const WinogradTile& tile, const ConvProblem& conv) {
  return tile.weights() * channel_blocks(conv.c / conv.groups) * kBlock * kBlock;
}

// The weights as kernels::Winograd wants them, transformed in double, and the bias of whole blocks.
// A panel is [weights, c_blocks of a group * 16, blocks * 16], zero beyond the channels that exist.
void pack(const WinogradTile& tile, const kernels::Winograd& geometry, const ConvProblem& conv,
          const Packing& packing, const LayerPointers& model, const PackedPointers& to,
          const Threads& threads) {
  const std::int64_t block_floats = floats_per_k_block(tile, conv);
  kernels::WinogradWeights call = {};
  call.by_row = packing.by_row.data();
  call.by_column = packing.by_column.data();
  call.channels = conv.c / conv.groups;
  call.depth = channel_blocks(call.channels) * kBlock;
  call.r = tile.h.r, call.s = tile.w.r;
  call.rows = tile.h.weights(), call.columns = tile.w.weights();
  parallel_for(threads, kernels::winograd_panels(geometry), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const kernels::WinogradPanel panel = kernels::winograd_panel(geometry, i);
                   const std::int64_t first = panel.begin * kBlock;
                   kernels::WinogradWeights one = call;
                   one.weights = model.weights + first * call.channels * call.r * call.s;
                   one.dst = to.weights + panel.begin * block_floats;
                   one.filters = std::min(conv.k - first, panel.count * kBlock);
                   one.width = panel.count * kBlock;
                   packing.transform(one);
                 }
               });
  pad_bias(model.bias, conv.k, to.bias, geometry.k_blocks * kBlock);
}

}  // namespace

kernels::WinogradSide winograd_side(Layout layout, std::int64_t channels, std::int64_t pixels) {
  const std::int64_t blocks = channel_blocks(channels);
  if (layout == Layout::kNhwc)
    return {pixels * channels, kBlock, channels, channels - (blocks - 1) * kBlock};
  return {blocks * pixels * kBlock, pixels * kBlock, kBlock, kBlock};
}

std::int64_t winograd_tiles(const WinogradTile& tile, const ConvProblem& conv) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  return conv.n * ceil_div(dst[2], tile.h.m) * ceil_div(dst[3], tile.w.m);
}

std::int64_t winograd_scratch_bytes(const WinogradVariant& variant, const ConvProblem& conv) {
  const Blocking blocking(winograd_tiles(variant.tile, conv), variant.most_tiles);
  return Scratch(variant.tile, channel_blocks(conv.c), blocking.largest()).bytes();
}

PlainKernel bind_winograd(const WinogradVariant& variant, const ConvProblem& conv,
                          std::string_view isa, std::int64_t threads) {
  const WinogradTile tile = variant.tile;
  const auto* const known = std::ranges::find(kernels::kWinogradTiles, tile);
  TORCHALGO_ASSERT(known != std::end(kernels::kWinogradTiles));
  const auto index = static_cast<int>(known - std::begin(kernels::kWinogradTiles));
  const kernels::WinogradKernels kernels = TORCHALGO_PICK_KERNEL(isa, winograd_kernels)(index);
  const kernels::Winograd geometry = geometry_of(variant, conv, panel_blocks_of(isa));
  const Division division(tile, geometry, winograd_tiles(tile, conv), variant.most_tiles, threads);
  const Packing packing = {TORCHALGO_PICK_KERNEL(isa, transform_winograd_weights),
                           filter_matrix(tile.h), filter_matrix(tile.w)};
  return {
      .workspace_bytes = division.scratch.bytes() * threads,
      .packed = {{geometry.k_blocks * floats_per_k_block(tile, conv), geometry.k_blocks * kBlock}},
      .pack =
          [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
              const Threads& pool) { pack(tile, geometry, conv, packing, model[0], to[0], pool); },
      .run = [=](const RunArgs& args,
                 const Threads& pool) { run(geometry, kernels, division, args, pool); }};
}

}  // namespace torchalgo::cpu
