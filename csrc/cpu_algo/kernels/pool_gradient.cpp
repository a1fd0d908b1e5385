// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/pool_gradient.h"

#include <limits>
#include <type_traits>

#include "cpu_algo/kernels/pool_taps.h"
#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

// Calls visit(offset) with the offset in floats of each tap of a window.
template <class Visit>
[[gnu::always_inline]] inline void for_each_tap(const Pool& pool, const Taps& rows,
                                                const Taps& columns, const Visit& visit) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = (rows.first + i * rows.step) * pool.w.in;
    for (std::int64_t j = 0; j < columns.count; ++j)
      visit((row + columns.first + j * columns.step) * pool.lanes);
  }
}

// Some adjacent lanes in registers.
template <int registers>
struct InRegisters {
  static constexpr std::int64_t kCount = registers * kNativeLanes;
  Native part[registers];

  explicit InRegisters(float x) {
    for (Native& to : part) to = x - Native{};
  }
  explicit InRegisters(const float* at) {
    for (int i = 0; i < registers; ++i) part[i] = load_native(at + i * kNativeLanes);
  }
  void store(float* at) const {
    for (int i = 0; i < registers; ++i) store_native(part[i], at + i * kNativeLanes);
  }
};

// Adds the gradient of one window of a maximum.
template <int registers>
inline void add_maximum(const Pool& pool, const Taps& rows, const Taps& columns, const float* src,
                        const float* diff, float* dst) {
  using Some = InRegisters<registers>;
  Some best(-std::numeric_limits<float>::infinity()), place(0.0F);  // the number of its tap
  Native tap = {};
  for_each_tap(pool, rows, columns, [&](std::int64_t offset) {
    const Some x(src + offset);
    for (int i = 0; i < registers; ++i) {
      const NativeInts is_better = (x.part[i] > best.part[i]) | (x.part[i] != x.part[i]);
      best.part[i] = is_better ? x.part[i] : best.part[i];
      place.part[i] = is_better ? tap : place.part[i];
    }
    tap += 1.0F;
  });
  const Some gradient(diff);
  tap = Native{};
  for_each_tap(pool, rows, columns, [&](std::int64_t offset) {
    Some sum(dst + offset);
    for (int i = 0; i < registers; ++i)
      sum.part[i] += place.part[i] == tap ? gradient.part[i] : Native{};
    sum.store(dst + offset);
    tap += 1.0F;
  });
}

template <int registers>
inline void add_average(const Pool& pool, const Taps& rows, const Taps& columns, const float* diff,
                        float* dst) {
  InRegisters<registers> part(diff);
  const float scale = scale_of(pool, rows, columns);
  for (Native& one : part.part) one *= scale;
  for_each_tap(pool, rows, columns, [&](std::int64_t offset) {
    InRegisters<registers> sum(dst + offset);
    for (int i = 0; i < registers; ++i) sum.part[i] += part.part[i];
    sum.store(dst + offset);
  });
}

inline void add_maximum_of_lane(const Pool& pool, const Taps& rows, const Taps& columns,
                                const float* src, const float* diff, float* dst) {
  float best = -std::numeric_limits<float>::infinity();
  std::int64_t place = -1;
  for_each_tap(pool, rows, columns, [&](std::int64_t offset) {
    const float x = src[offset];
    const bool is_better = (x > best) | (x != x) | (place < 0);
    best = is_better ? x : best;
    place = is_better ? offset : place;
  });
  if (place >= 0) dst[place] += *diff;
}

inline void add_average_of_lane(const Pool& pool, const Taps& rows, const Taps& columns,
                                const float* diff, float* dst) {
  const float part = *diff * scale_of(pool, rows, columns);
  for_each_tap(pool, rows, columns, [&](std::int64_t offset) { dst[offset] += part; });
}

// Adds the gradient of a window for some lanes, as many as possible at once.
inline void add_window(const PoolGradient& call, const Taps& rows, const Taps& columns,
                       const float* src, const float* diff, float* dst, std::int64_t lanes) {
  const Pool& pool = call.pool;
  std::int64_t lane = 0;
  const auto add_some = [&]<int registers>(std::integral_constant<int, registers>) {
    constexpr std::int64_t kCount = InRegisters<registers>::kCount;
    for (; lane + kCount <= lanes; lane += kCount) {
      if (pool.is_max) {
        add_maximum<registers>(pool, rows, columns, src + lane, diff + lane, dst + lane);
      } else {
        add_average<registers>(pool, rows, columns, diff + lane, dst + lane);
      }
    }
  };
  add_some(std::integral_constant<int, 16 / kNativeLanes>());
  if constexpr (kNativeLanes < 16) add_some(std::integral_constant<int, 1>());
  for (; lane < lanes; ++lane) {
    if (pool.is_max) {
      add_maximum_of_lane(pool, rows, columns, src + lane, diff + lane, dst + lane);
    } else {
      add_average_of_lane(pool, rows, columns, diff + lane, dst + lane);
    }
  }
}

inline void run_plane(const PoolGradient& call, const float* src, const float* diff, float* dst,
                      std::int64_t lanes) {
  const Pool& pool = call.pool;
  for (std::int64_t pixel = 0; pixel < pool.h.in * pool.w.in; ++pixel) {
    float* const at = dst + pixel * pool.lanes;
    for (std::int64_t lane = 0; lane < lanes; ++lane) at[lane] = 0;
  }
  for (std::int64_t p = 0; p < pool.h.out; ++p) {
    const Taps rows = taps_of(pool.h, p);
    for (std::int64_t q = 0; q < pool.w.out; ++q) {
      const float* const at = diff + (p * pool.w.out + q) * pool.lanes;
      add_window(call, rows, taps_of(pool.w, q), src, at, dst, lanes);
    }
  }
}

}  // namespace

void run_pool_gradient(const PoolGradient& call, std::int64_t begin, std::int64_t end) {
  const Pool& pool = call.pool;
  const std::int64_t chunks = (pool.lanes + pool.lane_chunk - 1) / pool.lane_chunk;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t image = task / chunks, lane = task % chunks * pool.lane_chunk;
    const std::int64_t lanes = min(pool.lane_chunk, pool.lanes - lane);
    const std::int64_t in = image * pool.h.in * pool.w.in * pool.lanes + lane;
    const float* const src = pool.is_max ? pool.src + in : call.diff;
    const float* const diff = call.diff + image * pool.h.out * pool.w.out * pool.lanes + lane;
    run_plane(call, src, diff, pool.dst + in, lanes);
  }
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA
