// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/winograd.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv_row.h"

namespace torchalgo::cpu {
namespace {

using kernels::WinogradAxis;
using kernels::WinogradTile;

constexpr std::int64_t kScratchLimit = std::int64_t{2} << 20;  // per thread
constexpr std::int64_t kBlock = 16;

// Two blocks of 16 output channels a panel fill the AVX-512 registers together with 14 tiles; with
// AVX2 one block and 6 tiles do.
std::int64_t panel_blocks_of(std::string_view isa) { return isa == "avx512" ? 2 : 1; }
constexpr std::int64_t kMaxPanelBlocks = 2;

// What the build decides.
struct Build {
  kernels::WinogradKernels kernels;
  std::int64_t panel_blocks;
};

// The transforms multiply rounding errors. The factor doubles with each further interpolation point
// where both axes are transformed, and with each two where one is: found by comparison with f64.
double rounding_of(const WinogradTile& tile) {
  const auto points = [](const WinogradAxis& axis) { return axis.m + axis.r - axis.stride; };
  const bool is_nested = tile.h.r > 1 && tile.w.r > 1;
  const int most = std::max(points(tile.h), points(tile.w));
  return std::ldexp(1.0, is_nested ? most - 3 : most / 2 - 1);
}

// The N of the variants. A tile along one axis has few elements, so that more tiles lie in L2.
std::span<const int> block_sizes(const WinogradTile& tile) {
  static constexpr int kNested[] = {14, 28, 56};
  static constexpr int kAlongOneAxis[] = {28, 56, 112};
  const bool is_nested = tile.h.r > 1 && tile.w.r > 1;
  return is_nested ? std::span(kNested) : std::span(kAlongOneAxis);
}

std::int64_t tile_count(const WinogradTile& tile, const ConvProblem& conv) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  return conv.n * ceil_div(dst[2], tile.h.m) * ceil_div(dst[3], tile.w.m);
}

// A block of tiles as equal in size as its siblings; 49 tiles in blocks of at most 28: 25 and 24.
struct Blocking {
  std::int64_t tiles = 0;
  std::int64_t count = 0;
  Blocking(std::int64_t tiles, std::int64_t max_tiles)
      : tiles(tiles), count(ceil_div(tiles, max_tiles)) {}
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
  refusal = refuse_dilation_and_groups(conv);
  if (!refusal.empty()) return refusal;
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  const std::int64_t direct = conv.r * conv.s * conv.n * dst[2] * dst[3];
  const std::int64_t ours = tile_count(tile, conv) * tile.elements();
  if (ours >= direct) {
    return fmt::format("saves nothing on a result of {}x{}: {} multiplications instead of {}",
                       dst[2], dst[3], ours, direct);
  }
  return {};
}

Offer offer(const WinogradAlgorithm& winograd, const Problem& problem, const Device& device) {
  const WinogradTile& tile = winograd.tile;
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(tile, *conv); !refusal.empty())
    return {{}, std::move(refusal)};
  const std::int64_t tiles = tile_count(tile, *conv);
  Offer offer;
  std::int64_t smaller = 0;
  std::int64_t least_bytes = 0;
  for (const int size : block_sizes(tile)) {
    if (tiles <= smaller) break;  // one block already: the same as the variant before
    smaller = size;
    const Scratch scratch(tile, channel_blocks(conv->c), Blocking(tiles, size).largest());
    if (least_bytes == 0) least_bytes = scratch.bytes();
    if (scratch.bytes() > kScratchLimit) break;
    offer.primitives.push_back({fmt::format("{}.t{}", winograd.name, size), winograd.layout,
                                winograd.layout, device.threads * scratch.bytes()});
  }
  if (offer.primitives.empty()) {
    offer.refusal = fmt::format("needs {} KiB of scratch per thread for {} channels, allows {} KiB",
                                least_bytes >> 10, conv->c, kScratchLimit >> 10);
  }
  return offer;
}

// The products of the transformed tiles; the transforms and whole blocks of channels come on top.
Work least_work(const WinogradTile& tile, const ConvProblem& conv) {
  const std::int64_t products = tile_count(tile, conv) * tile.elements();
  return {2.0 * static_cast<double>(products) * static_cast<double>(conv.c * conv.k),
          least_bytes(conv)};
}

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

// The largest `of(tile)` of all tiles.
template <class Of>
constexpr int largest(const Of& of) {
  int result = 0;
  for (const WinogradTile& tile : kernels::kWinogradTiles) result = std::max(result, of(tile));
  return result;
}
constexpr int kMaxTaps = largest([](const WinogradTile& t) { return std::max(t.h.r, t.w.r); });
constexpr int kMaxSize =
    largest([](const WinogradTile& t) { return std::max(t.h.weights(), t.w.weights()); });
constexpr int kMaxElements = largest([](const WinogradTile& t) { return t.weights(); });

// u[y][x] of the transformed filter `g`, a dense row of tile.weights().
void transform_filter(const WinogradTile& tile, const float* g, double* u) {
  const int width = tile.w.weights();
  double taps[kMaxTaps * kMaxTaps];
  double columns[kMaxSize * kMaxTaps];  // transformed along y: [tile.h.weights(), tile.w.r]
  std::copy(g, g + std::ptrdiff_t{tile.h.r} * tile.w.r, taps);
  for (int s = 0; s < tile.w.r; ++s) {
    double column[kMaxSize];
    transform_axis(tile.h, taps + s, tile.w.r, column);
    for (int y = 0; y < tile.h.weights(); ++y) columns[y * tile.w.r + s] = column[y];
  }
  for (int y = 0; y < tile.h.weights(); ++y) {
    transform_axis(tile.w, columns + std::ptrdiff_t{y} * tile.w.r, 1,
                   u + std::ptrdiff_t{y} * width);
  }
}

// One panel: [weights, c_blocks * 16, blocks * 16], zero beyond the channels that exist.
void pack_panel(const WinogradTile& tile, const ConvProblem& conv, const float* weights,
                std::int64_t first_block, std::int64_t blocks, float* out) {
  const int elements = tile.weights();
  const std::int64_t depth = channel_blocks(conv.c) * kBlock;
  const std::int64_t columns = blocks * kBlock;
  std::array<double, kMaxElements> u = {};
  for (std::int64_t c = 0; c < depth; ++c) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t k = first_block * kBlock + column;
      if (c < conv.c && k < conv.k) {
        transform_filter(tile, weights + (k * conv.c + c) * conv.r * conv.s, u.data());
      } else {
        u.fill(0);
      }
      for (int element = 0; element < elements; ++element)
        out[(element * depth + c) * columns + column] = static_cast<float>(u[element]);
    }
  }
}

kernels::WinogradSide side_of(Layout layout, std::int64_t channels, std::int64_t pixels) {
  const std::int64_t blocks = channel_blocks(channels);
  if (layout == Layout::kNhwc)
    return {pixels * channels, kBlock, channels, channels - (blocks - 1) * kBlock};
  return {blocks * pixels * kBlock, pixels * kBlock, kBlock, kBlock};
}

// The sizes of a run; without pointers.
kernels::Winograd geometry_of(const WinogradAlgorithm& winograd, const ConvProblem& conv,
                              std::int64_t panel_blocks) {
  const WinogradTile& tile = winograd.tile;
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  kernels::Winograd args = {};
  args.c_blocks = channel_blocks(conv.c);
  args.k_blocks = channel_blocks(conv.k);
  args.panel_blocks = panel_blocks;
  args.src_side = side_of(winograd.layout, conv.c, conv.h * conv.w);
  args.dst_side = side_of(winograd.layout, conv.k, dst[2] * dst[3]);
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

// Each worker owns a slice of the workspace and a run of the blocks.
void run_by_blocks(const kernels::Winograd& args, const kernels::WinogradKernels& kernel,
                   const Blocking& blocking, const Scratch& scratch, float* workspace,
                   std::int64_t workers) {
  const std::int64_t panels = ceil_div(args.k_blocks, args.panel_blocks);
  run_in_slices(blocking.count, workers,
                [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                  float* v = workspace + slice * scratch.floats();
                  float* m = v + scratch.v;
                  for (std::int64_t i = begin; i < end; ++i) {
                    const kernels::TileBlock block = blocking.block(i);
                    kernel.transform(args, block, v, 0, args.c_blocks);
                    kernel.multiply(args, block, v, m, m + scratch.m, 0, panels);
                  }
                });
}

// All workers share V and divide the output channels, so that each streams its part of the weights.
void run_by_panels(const kernels::Winograd& args, const kernels::WinogradKernels& kernel,
                   const Blocking& blocking, const Scratch& scratch, float* workspace,
                   std::int64_t workers) {
  const std::int64_t panels = ceil_div(args.k_blocks, args.panel_blocks);
  float* v = workspace;
  for (std::int64_t i = 0; i < blocking.count; ++i) {
    const kernels::TileBlock block = blocking.block(i);
    run_in_slices(args.c_blocks, workers, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
      kernel.transform(args, block, v, begin, end);
    });
    run_in_slices(panels, workers, [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
      float* m = v + scratch.v + slice * (scratch.m + scratch.chunks);
      kernel.multiply(args, block, v, m, m + scratch.m, begin, end);
    });
  }
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
    const std::int64_t panels = ceil_div(args.k_blocks, args.panel_blocks);
    is_by_blocks = blocking.count >= workers || panels < workers;
    // A multiple of the workers, so that they end together.
    if (is_by_blocks)
      blocking.count = std::min(ceil_div(blocking.count, workers) * workers, blocking.tiles);
  }
};

at::Tensor run(const kernels::Winograd& geometry, const kernels::WinogradKernels& kernels,
               const Division& division, const KernelArgs& args) {
  kernels::Winograd winograd = geometry;
  winograd.src = args.src[0].const_data_ptr<float>();
  winograd.weights = args.packed[0].const_data_ptr<float>();
  winograd.bias = args.packed[1].const_data_ptr<float>();
  if (args.residual.defined()) winograd.residual = args.residual.const_data_ptr<float>();
  winograd.dst = args.dst.mutable_data_ptr<float>();
  const auto run_part = division.is_by_blocks ? run_by_blocks : run_by_panels;
  run_part(winograd, kernels, division.blocking, division.scratch,
           static_cast<float*>(args.workspace), division.workers);
  return args.dst;
}

// The weights as kernels::Winograd wants them, transformed in double, and the bias of whole blocks.
Packed pack(const WinogradTile& tile, std::int64_t panel_blocks, const ConvProblem& conv,
            const Weights& weights) {
  const std::int64_t k_blocks = channel_blocks(conv.k);
  const std::int64_t block_floats = tile.weights() * channel_blocks(conv.c) * kBlock * kBlock;
  const at::Tensor plain = weights[0].weights.contiguous();
  const at::Tensor packed = at::empty({k_blocks * block_floats}, at::kFloat);
  const float* src = plain.const_data_ptr<float>();
  float* dst = packed.mutable_data_ptr<float>();
  at::parallel_for(0, ceil_div(k_blocks, panel_blocks), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t panel = begin; panel < end; ++panel) {
                       const std::int64_t first = panel * panel_blocks;
                       pack_panel(tile, conv, src, first, std::min(panel_blocks, k_blocks - first),
                                  dst + first * block_floats);
                     }
                   });
  return {packed, pad_bias(weights[0].bias, k_blocks * kBlock)};
}

std::int64_t packed_bytes(const WinogradTile& tile, const ConvProblem& conv) {
  const std::int64_t depth = channel_blocks(conv.c) * kBlock * tile.weights();
  return channel_blocks(conv.k) * kBlock * (depth + 1) * std::int64_t{sizeof(float)};  // 1: bias
}

Kernel prepare(const WinogradAlgorithm& winograd, const Build& build, const Problem& problem,
               const Primitive& primitive, const Device& device) {
  const auto& conv = std::get<ConvProblem>(problem);
  const WinogradTile& tile = winograd.tile;
  const kernels::Winograd geometry = geometry_of(winograd, conv, build.panel_blocks);
  const Division division(tile, geometry, tile_count(tile, conv), variant_number(primitive),
                          device.threads);
  return {.problem = problem,
          .primitive = with_workspace(primitive, division.scratch.bytes() * device.threads),
          .run = [=, kernels = build.kernels](
                     const KernelArgs& args) { return run(geometry, kernels, division, args); },
          .pack = [=, panel_blocks = build.panel_blocks](
                      const Weights& weights) { return pack(tile, panel_blocks, conv, weights); },
          .packed_bytes = [=] { return packed_bytes(tile, conv); },
          .least_work = [=] { return least_work(tile, conv); }};
}

}  // namespace

Algorithm make_winograd(const WinogradAlgorithm& winograd, std::string_view isa) {
  const auto* const tile = std::ranges::find(kernels::kWinogradTiles, winograd.tile);
  TORCHALGO_ASSERT(tile != std::end(kernels::kWinogradTiles));
  const auto index = static_cast<int>(tile - std::begin(kernels::kWinogradTiles));
  const Build build = {TORCHALGO_PICK_KERNEL(isa, winograd_kernels)(index), panel_blocks_of(isa)};
  Algorithm algorithm;
  algorithm.name = winograd.name;
  algorithm.version = winograd.version;
  algorithm.rounding = rounding_of(winograd.tile);
  algorithm.offer = [winograd](const Problem& problem, const Device& device) {
    return offer(winograd, problem, device);
  };
  algorithm.prepare = [winograd, build](const Problem& problem, const Primitive& primitive,
                                        const Device& device) {
    return prepare(winograd, build, problem, primitive, device);
  };
  return with_backward_data(std::move(algorithm));
}

// All tiles of kernels::kWinogradTiles in nChw16c, for example cpu.winograd_f4x4_3x3.
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
