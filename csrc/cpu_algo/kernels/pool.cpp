// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/pool.h"

#include <cstring>
#include <limits>

#include "cpu_algo/kernels/pool_taps.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t kBlock = 16;       // channels of an nChw16c block
constexpr std::int64_t kMaxWidth = 2048;  // of a row whose column results fit on the stack

/// The outputs [first, last) whose windows lie inside the tensor; none if adaptive.
struct Interior {
  std::int64_t first, last;
};

inline Interior interior_of(const PoolAxis& axis) {
  if (axis.is_adaptive) return {0, 0};
  const std::int64_t room = axis.in + axis.pad - (axis.window - 1) * axis.dilation - 1;
  const std::int64_t first = (axis.pad + axis.stride - 1) / axis.stride;
  const std::int64_t last = room < 0 ? 0 : min(room / axis.stride + 1, axis.out);
  return {first, last > first ? last : first};
}

template <bool is_max>
constexpr float neutral() {
  return is_max ? -std::numeric_limits<float>::infinity() : 0.0F;
}

/// A vector of bf16 for maxima: integers in the same order, with all NaNs above infinity.
struct Keys {
  typedef std::int16_t Part __attribute__((vector_size(sizeof(Native))));
  static constexpr int kCount = 2 * kLanes;
  static constexpr std::int16_t kNans = 0x7f;  // the negative ones, which lie below -infinity
  Part part[kParts];

  Keys() = default;
  /// The smallest key, that of -infinity.
  explicit Keys(float) {
    for (Part& to : part) to = Part{} + std::numeric_limits<std::int16_t>::min();
  }
  static Part flip_negative(const Part& x) { return x ^ ((x >> 15) & 0x7fff); }

  static Keys loadu(const Bf16* at) {
    Keys keys;
    std::memcpy(keys.part, at, sizeof keys.part);
    for (Part& x : keys.part) x = add(flip_negative(x), -kNans);
    return keys;
  }
  void store(Bf16* at) const {
    Keys bits = *this;
    for (Part& x : bits.part) x = flip_negative(add(x, kNans));
    std::memcpy(at, bits.part, sizeof bits.part);
  }
  /// Returns x + y with a wrap.
  static Part add(const Part& x, std::int16_t y) {
    typedef std::uint16_t Unsigned __attribute__((vector_size(sizeof(Native))));
    return reinterpret_cast<Part>(reinterpret_cast<Unsigned>(x) + static_cast<std::uint16_t>(y));
  }
};

template <bool is_max>
inline Keys combine(const Keys& a, const Keys& b) {
  static_assert(is_max);
  Keys larger;
  for (int i = 0; i < kParts; ++i) larger.part[i] = a.part[i] > b.part[i] ? a.part[i] : b.part[i];
  return larger;
}

template <class Lanes>
constexpr int kCountOf = kLanes;
template <>
constexpr int kCountOf<Keys> = Keys::kCount;

template <bool is_max>
inline Vec combine(const Vec& a, const Vec& b) {
  if constexpr (is_max) return maximum(a, b);
  return a + b;
}

template <bool is_max>
inline float combine(float a, float b) {
  if constexpr (is_max) return (b > a) | (b != b) ? b : a;  // no branch, so loops over it vectorise
  return a + b;
}

/// Reduces one window for `vectors` vectors of lanes. Each row has a sum of its own. This shortens
/// the chain of dependent additions, and reduces the rounding error of large windows.
/// `fixed_columns` is the number of taps per row if it is a constant, and 0 if not.
template <bool is_max, int vectors, int fixed_columns, class V, class From, class To>
inline void reduce_lanes(const Pool& pool, const From* image, const Taps& rows, const Taps& columns,
                         float scale, To* dst) {
  const std::int64_t column_step = columns.step * pool.lanes;
  const std::int64_t row_step = rows.step * pool.w.in * pool.lanes;
  const std::int64_t count = fixed_columns > 0 ? fixed_columns : columns.count;
  const From* row = image + (rows.first * pool.w.in + columns.first) * pool.lanes;
  V total[vectors];
  for (V& value : total) value = V(neutral<is_max>());
  for (std::int64_t i = 0; i < rows.count; ++i, row += row_step) {
    V sum[vectors];
    for (V& value : sum) value = V(neutral<is_max>());
    const From* tap = row;
    for (std::int64_t j = 0; j < count; ++j, tap += column_step) {
      for (int v = 0; v < vectors; ++v) {
        sum[v] = combine<is_max>(sum[v], V::loadu(tap + v * kCountOf<V>));
      }
    }
    for (int v = 0; v < vectors; ++v) total[v] = combine<is_max>(total[v], sum[v]);
  }
  for (int v = 0; v < vectors; ++v) {
    if constexpr (!is_max) total[v] = total[v] * Vec(scale);
    total[v].store(dst + v * kCountOf<V>);
  }
}

/// Reduces one window for fewer lanes than a vector has.
template <bool is_max, class From, class To>
inline void reduce_few_lanes(const Pool& pool, const From* image, const Taps& rows,
                             const Taps& columns, float scale, std::int64_t lanes, To* dst) {
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    float total = neutral<is_max>();
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const std::int64_t y = rows.first + i * rows.step;
      const From* tap = image + (y * pool.w.in + columns.first) * pool.lanes + lane;
      float sum = neutral<is_max>();
      for (std::int64_t j = 0; j < columns.count; ++j) {
        sum = combine<is_max>(sum, to_float(tap[j * columns.step * pool.lanes]));
      }
      total = combine<is_max>(total, sum);
    }
    dst[lane] = from_float<To>(total * scale);
  }
}

/// Computes `lanes` lanes of one output pixel, at least as many as a V has.
template <bool is_max, int fixed_columns, class V, class From, class To>
inline void reduce_vectors(const Pool& pool, const From* image, const Taps& rows,
                           const Taps& columns, float scale, std::int64_t lanes, To* dst) {
  constexpr int kCount = kCountOf<V>;
  std::int64_t lane = 0;
  for (; lane + 4 * kCount <= lanes; lane += 4 * kCount) {
    reduce_lanes<is_max, 4, fixed_columns, V>(pool, image + lane, rows, columns, scale, dst + lane);
  }
  for (; lane + 2 * kCount <= lanes; lane += 2 * kCount) {
    reduce_lanes<is_max, 2, fixed_columns, V>(pool, image + lane, rows, columns, scale, dst + lane);
  }
  while (lane < lanes) {
    lane = min(lane, lanes - kCount);  // the last vector overlaps the one before it
    reduce_lanes<is_max, 1, fixed_columns, V>(pool, image + lane, rows, columns, scale, dst + lane);
    lane += kCount;
  }
}

/// Computes `lanes` lanes of one output pixel.
template <bool is_max, int fixed_columns, class From, class To>
inline void reduce_pixel(const Pool& pool, const From* image, const Taps& rows, const Taps& columns,
                         float scale, std::int64_t lanes, To* dst) {
  if constexpr (is_max && is_bf16<From>) {
    if (lanes >= Keys::kCount)
      return reduce_vectors<true, fixed_columns, Keys>(pool, image, rows, columns, scale, lanes,
                                                       dst);
  }
  if (lanes < kLanes) {
    return reduce_few_lanes<is_max>(pool, image, rows, columns, scale, lanes, dst);
  }
  reduce_vectors<is_max, fixed_columns, Vec>(pool, image, rows, columns, scale, lanes, dst);
}

/// Computes four outputs at `dst` for one block of 16 channels. All their windows lie inside the
/// tensor. Computed together, they hide each other's latency. `tap` is the first tap of the first
/// window.
template <bool is_max, int fixed_columns>
inline void reduce_four_pixels(const Pool& pool, const float* tap, const Taps& rows, float scale,
                               float* dst) {
  constexpr int kPixels = 4, kVectors = kBlock / kLanes;
  const std::int64_t pixel_step = pool.w.stride * kBlock;
  const std::int64_t column_step = pool.w.dilation * kBlock;
  const std::int64_t row_step = rows.step * pool.w.in * kBlock;
  const std::int64_t count = fixed_columns > 0 ? fixed_columns : pool.w.window;
  Vec total[kPixels][kVectors];
  for (auto& pixel : total) {
    for (Vec& value : pixel) value = Vec(neutral<is_max>());
  }
  for (std::int64_t i = 0; i < rows.count; ++i) {
    for (std::int64_t j = 0; j < count; ++j) {
      const float* src = tap + i * row_step + j * column_step;
      for (int pixel = 0; pixel < kPixels; ++pixel) {
        for (int v = 0; v < kVectors; ++v) {
          total[pixel][v] =
              combine<is_max>(total[pixel][v], Vec::loadu(src + pixel * pixel_step + v * kLanes));
        }
      }
    }
  }
  const Vec factor(scale);
  for (int pixel = 0; pixel < kPixels; ++pixel) {
    for (int v = 0; v < kVectors; ++v) {
      const Vec value = is_max ? total[pixel][v] : total[pixel][v] * factor;
      value.store(dst + pixel * kBlock + v * kLanes);
    }
  }
}

/// Computes the outputs of a row from `interior.first` on, four at a time. Returns the first output
/// that is left over.
template <bool is_max, int fixed_columns>
inline std::int64_t reduce_fours(const Pool& pool, const float* image, const Taps& rows,
                                 const Interior& interior, float* dst) {
  const Taps columns = taps_of(pool.w, interior.first);
  const float scale = scale_of(pool, rows, columns);
  std::int64_t q = interior.first;
  for (; q + 4 <= interior.last; q += 4) {
    const float* tap = image + (rows.first * pool.w.in + q * pool.w.stride - pool.w.pad) * kBlock;
    reduce_four_pixels<is_max, fixed_columns>(pool, tap, rows, scale, dst + q * kBlock);
  }
  return q;
}

template <bool is_max, class From = float, class To = From>
void pool_lanes(const Pool& pool, std::int64_t begin, std::int64_t end) {
  constexpr bool kHasBlocks = !is_bf16<From>;
  const std::int64_t chunks = (pool.lanes + pool.lane_chunk - 1) / pool.lane_chunk;
  const Interior interior =
      kHasBlocks && pool.lanes == kBlock ? interior_of(pool.w) : Interior{0, 0};
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t lane = task % chunks * pool.lane_chunk;
    const std::int64_t row = task / chunks;
    const std::int64_t lanes = min(pool.lane_chunk, pool.lanes - lane);
    const Taps rows = taps_of(pool.h, row % pool.h.out);
    const From* image =
        of<From>(pool.src) + row / pool.h.out * pool.h.in * pool.w.in * pool.lanes + lane;
    To* dst = of<To>(pool.dst) + row * pool.w.out * pool.lanes + lane;
    for (std::int64_t q = 0; q < pool.w.out; ++q) {
      if constexpr (kHasBlocks) {
        if (q == interior.first && q + 4 <= interior.last) {
          q = pool.w.window == 3 ? reduce_fours<is_max, 3>(pool, image, rows, interior, dst)
                                 : reduce_fours<is_max, 0>(pool, image, rows, interior, dst);
          if (q == pool.w.out) break;
        }
      }
      const Taps columns = taps_of(pool.w, q);
      const float scale = scale_of(pool, rows, columns);
      if (columns.count == 3) {
        reduce_pixel<is_max, 3>(pool, image, rows, columns, scale, lanes, dst + q * pool.lanes);
      } else if (columns.count == 2) {
        reduce_pixel<is_max, 2>(pool, image, rows, columns, scale, lanes, dst + q * pool.lanes);
      } else {
        reduce_pixel<is_max, 0>(pool, image, rows, columns, scale, lanes, dst + q * pool.lanes);
      }
    }
  }
}

template <bool is_max>
inline float reduce_run(const float* src, std::int64_t count) {
  Vec sums[4];
  for (Vec& sum : sums) sum = Vec(neutral<is_max>());
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int v = 0; v < 4; ++v) {
      sums[v] = combine<is_max>(sums[v], Vec::loadu(src + i + v * kLanes));
    }
  }
  for (; i + kLanes <= count; i += kLanes) sums[0] = combine<is_max>(sums[0], Vec::loadu(src + i));
  const Vec sum =
      combine<is_max>(combine<is_max>(sums[0], sums[1]), combine<is_max>(sums[2], sums[3]));
  float lanes[kLanes];
  sum.store(lanes);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) {
      lanes[lane] = combine<is_max>(lanes[lane], lanes[lane + half]);
    }
  }
  float total = lanes[0];
  for (; i < count; ++i) total = combine<is_max>(total, src[i]);
  return total;
}

/// Computes a row of a plane window by window. This is for wide windows and for very long rows.
template <bool is_max>
inline void pool_wide_row(const Pool& pool, const float* plane, const Taps& rows, float* dst) {
  for (std::int64_t q = 0; q < pool.w.out; ++q) {
    const Taps columns = taps_of(pool.w, q);
    const bool is_run = columns.count == pool.w.in && columns.step == 1 && rows.step == 1;
    float total = neutral<is_max>();
    if (is_run) {
      total = reduce_run<is_max>(plane + rows.first * pool.w.in, rows.count * pool.w.in);
    }
    for (std::int64_t i = 0; i < rows.count && !is_run; ++i) {
      const float* tap = plane + (rows.first + i * rows.step) * pool.w.in + columns.first;
      if (columns.step == 1) {
        total = combine<is_max>(total, reduce_run<is_max>(tap, columns.count));
        continue;
      }
      for (std::int64_t j = 0; j < columns.count; ++j) {
        total = combine<is_max>(total, tap[j * columns.step]);
      }
    }
    dst[q] = total * scale_of(pool, rows, columns);
  }
}

/// Computes dst[q] for the outputs whose windows lie inside the row. It goes tap by tap, so that
/// the loop over q is vectorized. `fixed_stride` is 1 or 2, and 0 for any other stride.
template <bool is_max, int fixed_stride>
inline void reduce_columns(const Pool& pool, const float* column, const Interior& interior,
                           float scale, float* dst) {
  const std::int64_t stride = fixed_stride > 0 ? fixed_stride : pool.w.stride;
  const std::int64_t count = interior.last - interior.first;
  float* out = dst + interior.first;
  for (std::int64_t j = 0; j < pool.w.window; ++j) {
    const float* tap = column + interior.first * stride - pool.w.pad + j * pool.w.dilation;
    for (std::int64_t q = 0; q < count; ++q) {
      out[q] = combine<is_max>(j > 0 ? out[q] : neutral<is_max>(), tap[q * stride]);
    }
  }
  for (std::int64_t q = 0; q < count && !is_max; ++q) out[q] *= scale;
}

/// Computes a row of a plane. It reduces the rows of the windows first, in vectors along the row,
/// and then their columns.
template <bool is_max>
inline void pool_narrow_row(const Pool& pool, const float* plane, const Taps& rows, float* dst) {
  float column[kMaxWidth];
  const std::int64_t width = pool.w.in;
  for (std::int64_t x = 0; x < width; ++x) column[x] = neutral<is_max>();
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* row = plane + (rows.first + i * rows.step) * width;
    for (std::int64_t x = 0; x < width; ++x) column[x] = combine<is_max>(column[x], row[x]);
  }
  const Interior interior = interior_of(pool.w);
  if (interior.last > interior.first) {
    const float scale = scale_of(pool, rows, taps_of(pool.w, interior.first));
    if (pool.w.stride == 1) {
      reduce_columns<is_max, 1>(pool, column, interior, scale, dst);
    } else if (pool.w.stride == 2) {
      reduce_columns<is_max, 2>(pool, column, interior, scale, dst);
    } else {
      reduce_columns<is_max, 0>(pool, column, interior, scale, dst);
    }
  }
  for (std::int64_t q = 0; q < pool.w.out; ++q) {
    if (q == interior.first && interior.last > interior.first) q = interior.last;
    if (q == pool.w.out) break;
    const Taps columns = taps_of(pool.w, q);
    float total = neutral<is_max>();
    for (std::int64_t j = 0; j < columns.count; ++j) {
      total = combine<is_max>(total, column[columns.first + j * columns.step]);
    }
    dst[q] = total * scale_of(pool, rows, columns);
  }
}

template <bool is_max>
void pool_planes(const Pool& pool, std::int64_t begin, std::int64_t end) {
  const bool is_wide = pool.w.in > kMaxWidth || pool.w.out == 1;
  for (std::int64_t row = begin; row < end; ++row) {
    const Taps rows = taps_of(pool.h, row % pool.h.out);
    const float* plane = pool.src + row / pool.h.out * pool.h.in * pool.w.in;
    float* dst = pool.dst + row * pool.w.out;
    if (is_wide) {
      pool_wide_row<is_max>(pool, plane, rows, dst);
    } else {
      pool_narrow_row<is_max>(pool, plane, rows, dst);
    }
  }
}

}  // namespace

void run_pool(const Pool& pool, std::int64_t begin, std::int64_t end) {
  if (pool.lanes == 1) {
    pool.is_max ? pool_planes<true>(pool, begin, end) : pool_planes<false>(pool, begin, end);
  } else {
    pool.is_max ? pool_lanes<true>(pool, begin, end) : pool_lanes<false>(pool, begin, end);
  }
}

void run_pool_bf16(const Pool& pool, std::int64_t begin, std::int64_t end) {
  pool.is_max ? pool_lanes<true, Bf16>(pool, begin, end)
              : pool_lanes<false, Bf16>(pool, begin, end);
}

void run_average_of_bf16(const Pool& pool, std::int64_t begin, std::int64_t end) {
  pool_lanes<false, Bf16, float>(pool, begin, end);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA
