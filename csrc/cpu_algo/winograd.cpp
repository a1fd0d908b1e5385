// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/winograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/instruction_sets.h"
#include "cpu_algo/kernels/winograd_weights.h"

namespace torchalgo::cpu {

using kernels::WinogradAxis;
using kernels::WinogradTile;

constexpr std::int64_t kBlock = 16;

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

std::string why_slow(const WinogradTile& tile, const ConvProblem& conv) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  const std::int64_t direct = conv.r * conv.s * conv.n * dst[2] * dst[3];
  const std::int64_t ours = winograd_tiles(tile, conv) * tile.elements();
  if (ours < direct) return {};
  return fmt::format("saves nothing on a result of {}x{}: {} multiplications instead of {}", dst[2],
                     dst[3], ours, direct);
}

namespace {

struct Variant {
  WinogradTile tile;                 // one of kernels::kWinogradTiles
  Layout layout = Layout::kNChw16c;  // or kNhwc
  std::int64_t most_tiles = 14;      // in a block
};

// Two blocks of 16 output channels a panel fill wide registers together with 14 tiles; others are
// full with one block and 6 tiles.
std::int64_t panel_blocks_of(std::string_view isa) {
  return kernels::instruction_set(isa).has_wide_registers ? 2 : 1;
}
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
kernels::Winograd geometry_of(const Variant& winograd, const ConvProblem& conv,
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

// Returns the bytes of the workspace of one thread.
std::int64_t scratch_bytes(const Variant& variant, const ConvProblem& conv) {
  const Blocking blocking(winograd_tiles(variant.tile, conv), variant.most_tiles);
  return Scratch(variant.tile, channel_blocks(conv.c), blocking.largest()).bytes();
}

PlainKernel make_kernel(const Variant& variant, const ConvProblem& conv, std::string_view isa,
                        std::int64_t threads) {
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
      .packing = fmt::format("panels of {} blocks", geometry.panel_blocks),
      .pack =
          [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
              const Threads& pool) { pack(tile, geometry, conv, packing, model[0], to[0], pool); },
      .run = [=](const RunArgs& args,
                 const Threads& pool) { run(geometry, kernels, division, args, pool); }};
}

constexpr std::int64_t kScratchLimit = std::int64_t{2} << 20;  // per thread

// Returns the factor by which the transforms increase rounding errors. It doubles with each
// interpolation point if both axes are transformed, and with every second point if one axis is. The
// rule was found by comparison with f64.
double rounding_of(const WinogradTile& tile) {
  const auto points = [](const WinogradAxis& axis) { return axis.m + axis.r - axis.stride; };
  const bool is_nested = tile.h.r > 1 && tile.w.r > 1;
  const int most = std::max(points(tile.h), points(tile.w));
  return std::ldexp(1.0, is_nested ? most - 3 : most / 2 - 1);
}

// Returns the values of N of the variants `.tN`. A tile along one axis has few elements, so more
// tiles fit into L2.
std::span<const int> block_sizes(const WinogradTile& tile) {
  static constexpr int kNested[] = {14, 28, 56};
  static constexpr int kAlongOneAxis[] = {28, 56, 112};
  const bool is_nested = tile.h.r > 1 && tile.w.r > 1;
  return is_nested ? std::span(kNested) : std::span(kAlongOneAxis);
}

std::string refusal_of(const WinogradTile& tile, const ConvProblem& conv) {
  std::string refusal = refuse_conv(conv);
  if (!refusal.empty()) return refusal;
  if (conv.r != tile.h.r || conv.s != tile.w.r) {
    return fmt::format("needs a {}x{} filter, got {}x{}", tile.h.r, tile.w.r, conv.r, conv.s);
  }
  if (conv.stride_h != tile.h.stride || conv.stride_w != tile.w.stride) {
    return fmt::format("needs stride {}x{}, got {}x{}", tile.h.stride, tile.w.stride, conv.stride_h,
                       conv.stride_w);
  }
  for (const auto refuse : {refuse_dilation, refuse_broken_groups}) {
    if (refusal = refuse(conv); !refusal.empty()) return refusal;
  }
  return {};
}

Offer offer_all(const WinogradAlgorithm& winograd, const Problem& problem, const Device& device) {
  const WinogradTile& tile = winograd.tile;
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(tile, *conv); !refusal.empty())
    return {{}, std::move(refusal)};
  Offer offer;
  for (const int size : block_sizes(tile)) {
    const std::int64_t bytes = scratch_bytes({tile, winograd.layout, size}, *conv);
    offer.primitives.push_back({fmt::format("{}.t{}", winograd.name, size), winograd.layout,
                                winograd.layout, device.threads * bytes});
  }
  return offer;
}

// Offers the variants that may be the fastest.
Offer offer(const WinogradAlgorithm& winograd, const Problem& problem, const Device& device) {
  Offer all = offer_all(winograd, problem, device);
  if (!all.refusal.empty()) return all;
  const auto& conv = std::get<ConvProblem>(problem);
  if (std::string why = why_slow(winograd.tile, conv); !why.empty()) return {{}, std::move(why)};
  const std::int64_t tiles = winograd_tiles(winograd.tile, conv);
  const std::int64_t least_bytes = all.primitives[0].workspace_bytes / device.threads;
  const std::int64_t least = block_sizes(winograd.tile)[0];
  std::erase_if(all.primitives, [&](const Primitive& primitive) {
    const std::int64_t most = variant_number(primitive);
    // One block holds all tiles: equal to the variant of half the size.
    const bool is_equal = most > least && tiles <= most / 2;
    return is_equal || primitive.workspace_bytes > device.threads * kScratchLimit;
  });
  if (all.primitives.empty()) {
    all.refusal = fmt::format("needs {} KiB of scratch per thread for {} channels, allows {} KiB",
                              least_bytes >> 10, conv.c, kScratchLimit >> 10);
  }
  return all;
}

// Counts the products of the transformed tiles. This is a lower bound: it leaves out the transforms
// and the rounding up to whole blocks of channels.
Work least_work(const WinogradTile& tile, const ConvProblem& conv) {
  const std::int64_t products = winograd_tiles(tile, conv) * tile.elements();
  return {2.0 * static_cast<double>(products) * static_cast<double>(conv.c / conv.groups * conv.k),
          least_bytes(conv)};
}

}  // namespace

Algorithm make_winograd(const WinogradAlgorithm& winograd, std::string_view isa) {
  Algorithm algorithm;
  algorithm.name = winograd.name;
  algorithm.version = winograd.version;
  algorithm.rounding = rounding_of(winograd.tile);
  // F(2,3) forms d0 - d2, d1 + d2, d2 - d1 and d1 - d3. Each of its two results uses only those of
  // the inputs that it reads, so a large value elsewhere does not reach it.
  const bool is_local = winograd.tile == kernels::WinogradTile{{2, 3}, {2, 3}};
  if (!is_local) algorithm.numerics = {"winograd"};
  algorithm.offer = std::bind_front(offer, winograd);
  algorithm.offer_all = std::bind_front(offer_all, winograd);
  algorithm.bind = [winograd, isa = std::string(isa)](
                       const Problem& problem, const Primitive& primitive, const Device& device) {
    const auto& conv = std::get<ConvProblem>(problem);
    const Variant variant = {winograd.tile, winograd.layout, variant_number(primitive)};
    PlainKernel kernel = make_kernel(variant, conv, isa, device.threads);
    kernel.least_work = [=, tile = winograd.tile] { return least_work(tile, conv); };
    return kernel;
  };
  return with_backward_data(std::move(algorithm));
}

// Makes an algorithm for each tile of kernels::kWinogradTiles in nChw16c, for example
// cpu.winograd_f4x4_3x3.
Algorithms winograd(const std::string& isa) {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const WinogradTile& tile : kernels::kWinogradTiles) {
      names.push_back(fmt::format("cpu.winograd_f{}x{}_{}x{}{}", tile.h.m, tile.w.m, tile.h.r,
                                  tile.w.r, tile.h.stride == 2 ? "s2" : ""));
    }
    return names;
  }();
  Algorithms all;
  for (const WinogradTile& tile : kernels::kWinogradTiles)
    all.push_back(make_winograd({.name = kNames[all.size()], .version = 5, .tile = tile}, isa));
  return all;
}

}  // namespace torchalgo::cpu
