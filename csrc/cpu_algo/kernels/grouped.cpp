// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/grouped.h"

#include "cpu_algo/kernels/depthwise_parts.h"

namespace torchalgo::kernels {
namespace {

constexpr int kTaps = 3;  // in both directions

// The number of output rows that are computed together. Neighbouring rows read the same pixels.
// Their sums must fit into the registers.
constexpr int kTall = kLanes == kBlock ? 2 : 1;

// Loads a vector in which each lane holds channel `member` of that lane's group. A multiply-add
// with this vector serves whole groups without a multiplication by zero.
template <int group>
class Spread {
 public:
  Spread(int vector, std::int64_t member) {
    if constexpr (group == kBlock) {
      offset_ = member;
      return;
    }
    offset_ = vector * kLanes;
    for (int lane = 0; lane < kLanes; ++lane)
      lanes_[lane] = lane / group * group + static_cast<std::int32_t>(member);
  }

  // Returns the vector for one pixel. `block` holds the 16 channels of the pixel.
  Vec operator()(const float* block) const {
    const float* const first = block + offset_;
    if constexpr (group == kBlock) return Vec(*first);
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps(_mm512_loadu_si512(lanes_), _mm512_loadu_ps(first));
#elif defined(__AVX2__)
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(first),
                                    _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lanes_)));
#else
    float spread[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) spread[lane] = first[lanes_[lane]];
    return Vec::loadu(spread);
#endif
  }

 private:
  std::int64_t offset_ = 0;
  std::int32_t lanes_[kLanes] = {};
};

// Consecutive output rows of one plane.
struct Rows {
  const float* src;  // pixel of tap row 0, column 0; may lie outside
  const float* weights;
  const float* bias;
  const float* residual;  // null: none
  float* dst;
  std::int64_t y;  // row of `src` in the image
};

// `flatten` is needed: in loops that are unrolled this much, GCC would call the small functions
// instead of inlining them.
template <int group, int stride, int rows, int columns, Edge edge>
[[gnu::flatten]] void run_tile(const Depthwise& conv, const Rows& at, std::int64_t column,
                               std::int64_t block, int vector) {
  using Reach = TileReach<kTaps, stride, columns, edge>;
  constexpr int kHeight = (rows - 1) * stride + kTaps;
  const std::int64_t first = column * stride - conv.pad_w;
  const std::int64_t lane = block + vector * kLanes;
  Vec sums[rows][columns];
#pragma GCC unroll 2
  for (int o = 0; o < rows; ++o) {
#pragma GCC unroll 8
    for (int u = 0; u < columns; ++u) sums[o][u] = Vec::loadu(at.bias + lane);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kHeight; ++i) {
    if (at.y + i < 0 || at.y + i >= conv.h) continue;
    const float* const row = at.src + (i * conv.w + first) * conv.pixel + block;
    for (std::int64_t member = 0; member < group; ++member) {
      Vec tap[rows][kTaps];
#pragma GCC unroll 2
      for (int o = 0; o < rows; ++o) {
        const int r = i - o * stride;
        if (r < 0 || r >= kTaps) continue;
#pragma GCC unroll 4
        for (int s = 0; s < kTaps; ++s) {
          const std::int64_t filter = (r * kTaps + s) * group + member;
          tap[o][s] = Vec::loadu(at.weights + filter * conv.pixel + lane);
        }
      }
      const Spread<group> spread(vector, member);
#pragma GCC unroll 32
      for (int x = Reach::kBegin; x < Reach::kEnd; ++x) {
        if (edge == Edge::kAny && (first + x < 0 || first + x >= conv.w)) continue;
        const Vec value = spread(row + x * conv.pixel);
#pragma GCC unroll 4
        for (int s = 0; s < kTaps; ++s) {
          const int u = (x - s) / stride;
          if (x < s || (x - s) % stride != 0 || u >= columns) continue;
#pragma GCC unroll 2
          for (int o = 0; o < rows; ++o) {
            const int r = i - o * stride;
            if (r >= 0 && r < kTaps) sums[o][u] = fmadd(value, tap[o][s], sums[o][u]);
          }
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int o = 0; o < rows; ++o) {
    const std::int64_t out = (o * conv.q + column) * conv.pixel + lane;
    store_columns(conv, at.residual == nullptr ? nullptr : at.residual + out, at.dst + out,
                  conv.pixel, sums[o]);
  }
}

// Computes rows in tiles of kColumns; the last tile overlaps the one before it. Narrow images use
// tiles of one column.
template <int group, int stride, int rows>
void run_rows(const Depthwise& conv, const Rows& at) {
  const bool is_narrow = conv.q < kColumns;
  const std::int64_t columns = is_narrow ? 1 : kColumns;
  for (std::int64_t next = 0; next < conv.pixel; next += kBlock) {
    const std::int64_t block = at_most(next, conv.pixel - kBlock);
    for (std::int64_t tile = 0; tile < conv.q; tile += columns) {
      const std::int64_t column = at_most(tile, conv.q - columns);
      const std::int64_t x = column * stride - conv.pad_w;
      for (int vector = 0; vector < kBlockVectors; ++vector) {
        if (is_narrow) {
          run_tile<group, stride, rows, 1, Edge::kAny>(conv, at, column, block, vector);
          continue;
        }
        with_edge(find_edge(kTaps, stride, x, kColumns, conv.w), [&]<Edge edge>() {
          run_tile<group, stride, rows, kColumns, edge>(conv, at, column, block, vector);
        });
      }
    }
  }
}

template <int group, int stride>
void run_all(const Depthwise& conv, std::int64_t begin, std::int64_t end) {
  for (std::int64_t task = begin; task < end;) {
    const std::int64_t plane = task / conv.p;
    const std::int64_t block = plane % conv.blocks;
    const std::int64_t row = task % conv.p;
    const std::int64_t y = row * stride - conv.pad_h;
    const std::int64_t out = plane * conv.dst_plane + row * conv.q * conv.pixel;
    const Rows rows = {conv.src + plane * conv.src_plane + y * conv.w * conv.pixel,
                       conv.weights + block * kTaps * kTaps * group * conv.pixel,
                       conv.bias + block * conv.pixel,
                       conv.residual == nullptr ? nullptr : conv.residual + out,
                       conv.dst + out,
                       y};
    const bool is_tall = at_most(end - task, conv.p - row) >= kTall;
    (is_tall ? &run_rows<group, stride, kTall> : &run_rows<group, stride, 1>)(conv, rows);
    const std::int64_t done = is_tall ? kTall : 1;
    activate_rows(conv, conv.dst + out, done, block + 1 == conv.blocks);
    task += done;
  }
}

template <int group>
void run_all(const Depthwise& conv, std::int64_t begin, std::int64_t end) {
  (conv.stride_w == 1 ? &run_all<group, 1> : &run_all<group, 2>)(conv, begin, end);
}

}  // namespace

namespace TORCHALGO_ISA {

void run_grouped(const Depthwise& conv, std::int64_t begin, std::int64_t end) {
  switch (conv.group) {
    case 2:
      return run_all<2>(conv, begin, end);
    case 4:
      return run_all<4>(conv, begin, end);
    case 8:
      return run_all<8>(conv, begin, end);
    default:
      return run_all<16>(conv, begin, end);
  }
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
