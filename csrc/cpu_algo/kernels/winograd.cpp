// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/winograd.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/gemm_tile.h"
#include "cpu_algo/kernels/instances.h"

namespace torchalgo::kernels {
namespace {

Vec constant(double value) { return Vec(static_cast<float>(value)); }

// The coefficients of a polynomial in x^2, lowest degree first. The highest coefficient is 1.
struct Coefficients {
  double c[WinogradPoints::kMaxPairs + 1] = {1};
};
// Returns the coefficients of the product of (x^2 - p^2) over all pairs of points except `skipped`.
constexpr Coefficients product(const WinogradPoints& points, int skipped) {
  Coefficients result;
  int degree = 0;
  for (int pair = 0; pair < points.pairs; ++pair) {
    if (pair == skipped) continue;
    ++degree;
    result.c[degree] = 1;
    for (int i = degree - 1; i >= 0; --i) {
      result.c[i] = (i > 0 ? result.c[i - 1] : 0) - points.p[pair] * points.p[pair] * result.c[i];
    }
  }
  return result;
}

// The functions below must be inlined: otherwise the values of a tile do not stay in registers.
template <int degree, int step>
[[gnu::always_inline]] inline Vec evaluate(const Coefficients& coefficients, const Vec* x) {
  Vec value = x[std::ptrdiff_t{2} * step * degree];
#pragma GCC unroll 4
  for (int i = degree - 1; i >= 0; --i)
    value = fmadd(constant(coefficients.c[i]), x[std::ptrdiff_t{2} * step * i], value);
  return value;
}

// Applies the source transform to every `step`-th vector of x. Row k of the transform holds the
// coefficients of the product of (x - p) over all points p except the k-th. The rows of +p and -p
// share their even and odd powers.
template <int size, int step = 1>
[[gnu::always_inline]] inline void transform(const Vec* x, Vec* y) {
  constexpr WinogradPoints kPoints = winograd_points(size);
  constexpr int kPairs = kPoints.pairs;
  if constexpr (size == 1) {
    y[0] = x[0];
  } else {
    constexpr Coefficients kAll = product(kPoints, -1);
    y[0] = evaluate<kPairs, step>(kAll, x);
    y[size - 1] = evaluate<kPairs, step>(kAll, x + step);
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const Coefficients others = product(kPoints, pair);
      const Vec even = evaluate<kPairs - 1, step>(others, x + 2 * step);
      const Vec odd = evaluate<kPairs - 1, step>(others, x + step);
      y[2 * pair + 1] = fmadd(constant(kPoints.p[pair]), odd, even);
      y[2 * pair + 2] = fnmadd(constant(kPoints.p[pair]), odd, even);
    }
  }
}

template <WinogradAxis axis>
[[gnu::always_inline]] inline void transform_axis(const Vec (&x)[axis.size()],
                                                  Vec (&y)[axis.size()]) {
  if constexpr (axis.stride == 1) {
    transform<axis.size()>(x, y);
  } else {
    transform<axis.m + 1, 2>(x, y);
#pragma GCC unroll 6
    for (int i = 0; i < axis.m; ++i) y[axis.m + 1 + i] = x[2 * i + 1];
  }
}

// Applies the inverse transform. Its row i holds the i-th powers of the points.
template <int size, int m>
[[gnu::always_inline]] inline void transform_back(const Vec* x, Vec (&y)[m]) {
  constexpr WinogradPoints kPoints = winograd_points(size);
  constexpr int kPairs = kPoints.pairs;
  if constexpr (size == 1) {
    y[0] = x[0];
  } else {
    Vec sums[2][kPairs];  // of the values at +p and -p, and their differences
    double powers[kPairs];
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      sums[0][pair] = x[2 * pair + 1] + x[2 * pair + 2];
      sums[1][pair] = x[2 * pair + 1] - x[2 * pair + 2];
      powers[pair] = 1;
    }
#pragma GCC unroll 6
    for (int i = 0; i < m; ++i) {
      const auto& terms = sums[i % 2];
      Vec value = i == 0       ? terms[0] + x[0]
                  : i == m - 1 ? fmadd(constant(powers[0]), terms[0], x[size - 1])
                               : constant(powers[0]) * terms[0];
#pragma GCC unroll 4
      for (int pair = 1; pair < kPairs; ++pair)
        value = i == 0 ? value + terms[pair] : fmadd(constant(powers[pair]), terms[pair], value);
      y[i] = value;
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) powers[pair] *= kPoints.p[pair];
    }
  }
}

template <WinogradAxis axis>
[[gnu::always_inline]] inline void transform_axis_back(const Vec (&x)[axis.size()],
                                                       Vec (&y)[axis.m]) {
  if constexpr (axis.stride == 1) {
    transform_back<axis.size()>(x, y);
  } else {
    transform_back<axis.m + 1>(x, y);
#pragma GCC unroll 6
    for (int i = 0; i < axis.m; ++i) y[i] = y[i] + x[axis.m + 1 + i];
  }
}

void copy_lanes(const float* from, float* to, std::int64_t lanes) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    const std::int64_t count = lanes - lane < kLanes ? lanes - lane : kLanes;
    Vec::loadu(from + lane, count).store(to + lane, count);
  }
}

std::int64_t at_least(std::int64_t a, std::int64_t low) { return a < low ? low : a; }
std::int64_t at_most(std::int64_t a, std::int64_t high) { return a < high ? a : high; }

struct TilePosition {
  std::int64_t image, y, x;  // y, x: first output row and column
};
template <int index>
TilePosition position_of(const Winograd& conv, std::int64_t tile) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  const std::int64_t row = tile / conv.tiles_w;
  return {row / conv.tiles_h, row % conv.tiles_h * kTile.h.m, tile % conv.tiles_w * kTile.w.m};
}

// The rows and columns [begin, end) of a source tile that lie inside the image.
struct Inside {
  std::int64_t y_begin, y_end, x_begin, x_end;
};
bool is_in(const Inside& inside, int y, int x) {
  return y >= inside.y_begin && y < inside.y_end && x >= inside.x_begin && x < inside.x_end;
}

// A source tile of one block of channels.
struct SrcTile {
  const float* src;  // element (0, 0), which may lie outside the image
  std::int64_t row_step, pixel_step;
  Inside inside;
};

// Transforms one vector of channels of a source tile. Pixels outside the image count as zero.
template <int index, bool is_whole>
void transform_src(const float* src, std::int64_t row_step, std::int64_t pixel_step,
                   const Inside& inside, float* v, std::int64_t v_step) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  constexpr int kHeight = kTile.h.size();
  constexpr int kWidth = kTile.w.size();
  Vec mid[kHeight][kWidth];
#pragma GCC unroll 10
  for (int x = 0; x < kWidth; ++x) {
    Vec column[kHeight];
    Vec transformed[kHeight];
#pragma GCC unroll 10
    for (int y = 0; y < kHeight; ++y) {
      const bool is_inside = is_whole || is_in(inside, y, x);
      column[y] = is_inside ? Vec::loadu(src + y * row_step + x * pixel_step) : Vec(0.0F);
    }
    transform_axis<kTile.h>(column, transformed);
#pragma GCC unroll 10
    for (int y = 0; y < kHeight; ++y) mid[y][x] = transformed[y];
  }
#pragma GCC unroll 10
  for (int y = 0; y < kHeight; ++y) {
    Vec transformed[kWidth];
    transform_axis<kTile.w>(mid[y], transformed);
#pragma GCC unroll 10
    for (int x = 0; x < kWidth; ++x) transformed[x].store(v + (y * kWidth + x) * v_step);
  }
}

// Returns source tile `i` of the first block of channels.
template <int index>
SrcTile src_tile_of(const Winograd& conv, std::int64_t i) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  const TilePosition tile = position_of<index>(conv, i);
  const std::int64_t pixel = conv.src_side.pixel;
  const std::int64_t y = tile.y * kTile.h.stride - conv.pad_h;
  const std::int64_t x = tile.x * kTile.w.stride - conv.pad_w;
  return {conv.src + tile.image * conv.src_side.image + (y * conv.w + x) * pixel,
          conv.w * pixel,
          pixel,
          {at_least(-y, 0), at_most(conv.h - y, kTile.h.size()), at_least(-x, 0),
           at_most(conv.w - x, kTile.w.size())}};
}

// Transforms a tile of one block of channels into `out`.
template <int index>
[[gnu::always_inline]] inline void transform_src_block(const SrcTile& tile, float* out,
                                                       std::int64_t v_step) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  const Inside& inside = tile.inside;
  const bool is_whole = inside.y_begin == 0 && inside.y_end == kTile.h.size() &&
                        inside.x_begin == 0 && inside.x_end == kTile.w.size();
  for (int lane = 0; lane < kBlock; lane += kLanes) {
    const float* const src = tile.src + lane;
    if (is_whole) {
      transform_src<index, true>(src, tile.row_step, tile.pixel_step, inside, out + lane, v_step);
    } else {
      transform_src<index, false>(src, tile.row_step, tile.pixel_step, inside, out + lane, v_step);
    }
  }
}

// Transforms a tile of a block that has only `lanes` channels in memory. The other channels are
// zero.
template <int index>
void transform_src_lanes(const SrcTile& tile, std::int64_t lanes, float* out, std::int64_t v_step) {
  constexpr int kHeight = kWinogradTiles[index].h.size();
  constexpr int kWidth = kWinogradTiles[index].w.size();
  float copy[kHeight * kWidth * kBlock] = {};
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      if (is_in(tile.inside, y, x)) {
        copy_lanes(tile.src + y * tile.row_step + x * tile.pixel_step,
                   copy + (y * kWidth + x) * kBlock, lanes);
      }
    }
  }
  const SrcTile whole = {copy, kWidth * kBlock, kBlock, {0, kHeight, 0, kWidth}};
  transform_src_block<index>(whole, out, v_step);
}

template <int index>
void transform_block(const Winograd& conv, const TileBlock& block, float* v, std::int64_t begin,
                     std::int64_t end) {
  const std::int64_t v_step = winograd_v_step(conv.c_blocks, block.count);
  const std::int64_t last_lanes = conv.src_side.last_lanes;
  const std::int64_t whole_end = last_lanes < kBlock ? at_most(end, conv.c_blocks - 1) : end;
  const auto out_of = [&](std::int64_t c, std::int64_t i) {
    return v + (c * block.count + i) * kBlock;
  };
  const auto transform_tile = [&](SrcTile tile, std::int64_t c, std::int64_t i) {
    tile.src += c * conv.src_side.block;
    transform_src_block<index>(tile, out_of(c, i), v_step);
  };
  const bool is_nhwc = conv.src_side.pixel != kBlock;
  if (is_nhwc) {
    // All channels of a pixel are adjacent, so they are read together.
    for (std::int64_t i = 0; i < block.count; ++i) {
      const SrcTile tile = src_tile_of<index>(conv, block.begin + i);
      for (std::int64_t c = begin; c < whole_end; ++c) transform_tile(tile, c, i);
    }
  } else {
    for (std::int64_t c = begin; c < whole_end; ++c) {
      for (std::int64_t i = 0; i < block.count; ++i)
        transform_tile(src_tile_of<index>(conv, block.begin + i), c, i);
    }
  }
  if (whole_end == end) return;
  for (std::int64_t i = 0; i < block.count; ++i) {
    SrcTile tile = src_tile_of<index>(conv, block.begin + i);
    tile.src += whole_end * conv.src_side.block;
    transform_src_lanes<index>(tile, last_lanes, out_of(whole_end, i), v_step);
  }
}

// The memory of one block of channels of an output tile.
struct DstTile {
  const float* bias;
  const float* residual;  // null: none
  float* dst;
  std::int64_t row_step, pixel_step;
  std::int64_t rows, columns;  // inside the image, at most those of the tile
};

template <int index, bool is_whole>
void transform_dst(const float* src, std::int64_t step, const DstTile& tile, const Clamp& clamp) {
  constexpr WinogradAxis kH = kWinogradTiles[index].h;
  constexpr WinogradAxis kW = kWinogradTiles[index].w;
  Vec mid[kH.m][kW.size()];
#pragma GCC unroll 10
  for (int x = 0; x < kW.size(); ++x) {
    Vec column[kH.size()];
    Vec transformed[kH.m];
#pragma GCC unroll 10
    for (int y = 0; y < kH.size(); ++y) column[y] = Vec::loadu(src + (y * kW.size() + x) * step);
    transform_axis_back<kH>(column, transformed);
#pragma GCC unroll 6
    for (int y = 0; y < kH.m; ++y) mid[y][x] = transformed[y];
  }
  const std::int64_t row_step = tile.row_step, pixel_step = tile.pixel_step;
  const Vec bias = Vec::loadu(tile.bias);
  const Vec low(clamp.low);
  const Vec high(clamp.high);
#pragma GCC unroll 6
  for (int y = 0; y < kH.m; ++y) {
    if (!is_whole && y >= tile.rows) return;
    Vec transformed[kW.m];
    transform_axis_back<kW>(mid[y], transformed);
#pragma GCC unroll 6
    for (int x = 0; x < kW.m; ++x) {
      if (!is_whole && x >= tile.columns) break;
      const std::int64_t offset = y * row_step + x * pixel_step;
      Vec value = transformed[x] + bias;
      if (tile.residual != nullptr) value = value + Vec::loadu(tile.residual + offset);
      apply_clamp(value, low, high).store(tile.dst + offset);
    }
  }
}

// Applies an activation to one row of a tile. Adjacent blocks are processed together.
void activate_blocks(float* row, const DstTile& tile, const Activation& activation) {
  if (tile.pixel_step == kBlock) return activate(row, row, tile.columns * kBlock, activation);
  for (std::int64_t x = 0; x < tile.columns; ++x, row += tile.pixel_step)
    activate(row, row, kBlock, activation);
}

// Finishes a stored tile, which is still in L1. It applies activations that are not clamps, and
// writes zeros to the pad lanes. Such an activation, or a NaN times a zero weight, may have left
// other values there.
void finish_tile(const DstTile& tile, const Activation& activation, std::int64_t pad_lanes) {
  for (std::int64_t y = 0; y < tile.rows; ++y) {
    float* row = tile.dst + y * tile.row_step;
    if (!is_clamp(activation)) activate_blocks(row, tile, activation);
    clear_lanes(row, kBlock, tile.columns, kBlock - pad_lanes);
  }
}

// Writes one block of channels of an output tile. `src` is its part of M.
template <int index>
[[gnu::always_inline]] inline void store_tile(const float* src, std::int64_t step,
                                              const DstTile& tile, const Clamp& clamp) {
  const bool is_whole =
      tile.rows == kWinogradTiles[index].h.m && tile.columns == kWinogradTiles[index].w.m;
  for (int lane = 0; lane < kBlock; lane += kLanes) {
    DstTile part = tile;
    part.bias += lane;
    part.dst += lane;
    if (part.residual != nullptr) part.residual += lane;
    if (is_whole) {
      transform_dst<index, true>(src + lane, step, part, clamp);
    } else {
      transform_dst<index, false>(src + lane, step, part, clamp);
    }
  }
}

// Calls visit(y, x, offset in the tensor) for each pixel of a tile that lies inside the image.
template <class Visit>
void for_each_pixel(const DstTile& tile, const Visit& visit) {
  for (std::int64_t y = 0; y < tile.rows; ++y) {
    for (std::int64_t x = 0; x < tile.columns; ++x)
      visit(y, x, y * tile.row_step + x * tile.pixel_step);
  }
}

// Stores a tile of a block that has only `lanes` channels in memory.
template <int index>
void store_tile_lanes(const float* src, std::int64_t step, const DstTile& tile, std::int64_t lanes,
                      const Winograd& conv) {
  constexpr int kRows = kWinogradTiles[index].h.m;
  constexpr int kColumns = kWinogradTiles[index].w.m;
  float copy[kRows * kColumns * kBlock] = {};
  DstTile dense = tile;
  dense.dst = copy;
  dense.row_step = kColumns * kBlock;
  dense.pixel_step = kBlock;
  const auto of_pixel = [&](std::int64_t y, std::int64_t x) {
    return copy + (y * kColumns + x) * kBlock;
  };
  if (tile.residual != nullptr) {
    dense.residual = copy;
    for_each_pixel(tile, [&](std::int64_t y, std::int64_t x, std::int64_t offset) {
      copy_lanes(tile.residual + offset, of_pixel(y, x), lanes);
    });
  }
  store_tile<index>(src, step, dense, clamp_of(conv.activation));
  if (!is_clamp(conv.activation)) finish_tile(dense, conv.activation, 0);
  for_each_pixel(tile, [&](std::int64_t y, std::int64_t x, std::int64_t offset) {
    copy_lanes(of_pixel(y, x), tile.dst + offset, lanes);
  });
}

// Returns the memory of block `k` of output tile `i`.
template <int index>
DstTile dst_tile_of(const Winograd& conv, std::int64_t i, std::int64_t k) {
  const WinogradSide& side = conv.dst_side;
  const TilePosition position = position_of<index>(conv, i);
  const std::int64_t offset = position.image * side.image + k * side.block +
                              (position.y * conv.q + position.x) * side.pixel;
  return {conv.bias + k * kBlock,
          conv.residual == nullptr ? nullptr : conv.residual + offset,
          conv.dst + offset,
          conv.q * side.pixel,
          side.pixel,
          at_most(conv.p - position.y, kWinogradTiles[index].h.m),
          at_most(conv.q - position.x, kWinogradTiles[index].w.m)};
}

// Stores output block `k` of all tiles. `src` is its part of M.
template <int index>
void store_block(const Winograd& conv, const TileBlock& block, const float* src, std::int64_t step,
                 std::int64_t k) {
  const Clamp clamp = clamp_of(conv.activation);
  const bool is_last = k + 1 == conv.k_blocks;
  const std::int64_t pad_lanes = is_last ? conv.pad_lanes : 0;
  const bool is_nhwc = conv.dst_side.pixel != kBlock;
  for (std::int64_t i = 0; i < block.count; ++i) {
    const DstTile tile = dst_tile_of<index>(conv, block.begin + i, k);
    if (is_nhwc && i + 1 < block.count) {
      // In nhwc the pixels of a block are cache lines far apart, which the hardware prefetcher does
      // not predict.
      const DstTile next = dst_tile_of<index>(conv, block.begin + i + 1, k);
      for_each_pixel(next, [&](std::int64_t, std::int64_t, std::int64_t offset) {
        __builtin_prefetch(next.dst + offset, 1);
      });
    }
    if (is_last && conv.dst_side.last_lanes < kBlock) {
      store_tile_lanes<index>(src + i * kBlock, step, tile, conv.dst_side.last_lanes, conv);
      continue;
    }
    store_tile<index>(src + i * kBlock, step, tile, clamp);
    if (pad_lanes != 0 || !is_clamp(conv.activation)) finish_tile(tile, conv.activation, pad_lanes);
  }
}

// Computes M for one panel, by one small GEMM per element. Each GEMM prefetches a part of the next
// element's weights into L2.
void multiply_panel(const Tile& prototype, const WinogradTile& shape, std::int64_t v_step,
                    std::int64_t m_step, std::int64_t rows, int blocks) {
  const Strips strips(rows, TORCHALGO_ISA::max_tile_rows(blocks));
  const std::int64_t weights_step =
      std::int64_t{prototype.chunk_count} * prototype.depth * blocks * kBlock;
  const auto weights_of = [&](int element) {
    const int y = element / shape.w.size();
    const int x = element % shape.w.size();
    return prototype.b +
           (shape.h.weight_of(y) * shape.w.weights() + shape.w.weight_of(x)) * weights_step;
  };
  Tile tile = prototype;
  for (int element = 0; element < shape.elements(); ++element) {
    const float* a = prototype.a + element * v_step;
    float* c = prototype.c + element * m_step;
    tile.b = weights_of(element);
    tile.prefetch =
        element + 1 < shape.elements() ? weights_of(element + 1) : tile.b + weights_step;
    const bool is_new = tile.prefetch != tile.b;
    tile.prefetch_lines =
        is_new ? static_cast<int>((prototype.depth * blocks + strips.count - 1) / strips.count) : 0;
    for (std::int64_t strip = 0; strip < strips.count; ++strip) {
      tile.a = a + strips.begin(strip) * kBlock;
      tile.c = c + strips.begin(strip) * kBlock;
      TORCHALGO_ISA::gemm_tile(strips.size(strip), blocks)(tile);
      tile.prefetch += std::int64_t{tile.prefetch_lines} * tile.chunk_count * 16;
    }
  }
}

template <int index>
void multiply_block(const Winograd& conv, const TileBlock& block, const float* v, float* scratch,
                    void* chunk_memory, std::int64_t begin, std::int64_t end) {
  constexpr WinogradTile kTile = kWinogradTiles[index];
  Chunk* chunks = static_cast<Chunk*>(chunk_memory);
  const std::int64_t m_step = winograd_m_step(conv.panel_blocks, block.count);
  const std::int64_t c_blocks = conv.c_blocks / conv.groups;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto [group, first, blocks] = winograd_panel(conv, i);
    for (std::int64_t c = 0; c < c_blocks; ++c) {
      chunks[c].a = static_cast<std::int32_t>(c * block.count * kBlock);
      chunks[c].b = static_cast<std::int32_t>(c * kBlock * blocks * kBlock);
    }
    Tile tile;
    tile.a = v + group * c_blocks * block.count * kBlock;
    tile.a_row_stride = kBlock;
    tile.chunks = chunks;
    tile.chunk_count = static_cast<int>(c_blocks);
    tile.depth = kBlock;
    tile.b = conv.weights + first * kBlock * kTile.weights() * c_blocks * kBlock;
    tile.c = scratch;
    tile.c_row_stride = kBlock;
    tile.c_block_stride = block.count * kBlock;
    tile.columns = static_cast<int>(blocks * kBlock);
    multiply_panel(tile, kTile, winograd_v_step(conv.c_blocks, block.count), m_step, block.count,
                   static_cast<int>(blocks));
    for (std::int64_t k = 0; k < blocks; ++k)
      store_block<index>(conv, block, scratch + k * block.count * kBlock, m_step, first + k);
  }
}

// Returns null for what an emitted program never binds.
template <int index>
constexpr WinogradKernels kernels_of() {
  if constexpr (has_instance(kWinograd, index))
    return {&transform_block<index>, &multiply_block<index>};
  else
    return {};
}

template <int... index>
WinogradKernels kernels_of(int wanted, std::integer_sequence<int, index...>) {
  constexpr WinogradKernels kAll[] = {kernels_of<index>()...};
  note_instance(kWinograd, wanted);
  return kAll[wanted];
}

}  // namespace

namespace TORCHALGO_ISA {

WinogradKernels winograd_kernels(int index) {
  return kernels_of(index, std::make_integer_sequence<int, std::size(kWinogradTiles)>());
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
