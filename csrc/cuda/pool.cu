// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/elements.h"

namespace torchalgo::cuda {

// Returns the elementwise maximum. A NaN is larger than any number.
template <typename T, int kCount>
__device__ Vector<T, kCount> largest(Vector<T, kCount> a, const Vector<T, kCount>& b) {
  if constexpr (kCount == 1 || sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = static_cast<float>(a.elements[i]), y = static_cast<float>(b.elements[i]);
      if (y > x || y != y) a.elements[i] = b.elements[i];
    }
  } else {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    auto* const pairs = reinterpret_cast<Pair*>(a.elements);
    const auto* const others = reinterpret_cast<const Pair*>(b.elements);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) pairs[i] = __hmax2_nan(pairs[i], others[i]);
  }
  return a;
}

// The element of dst that a thread computes, from channel `c` on, and its window.
struct Place {
  std::uint32_t image, row, column, c;
};

template <int kCount>
__device__ Place place_of(const Pool& pool, std::uint32_t index) {
  const auto vectors = static_cast<std::uint32_t>(pool.c / kCount);
  const auto columns = static_cast<std::uint32_t>(pool.q),
             rows = static_cast<std::uint32_t>(pool.p);
  const std::uint32_t pixel = index / vectors, line = pixel / columns;
  return {line / rows, line % rows, pixel % columns, index % vectors * kCount};
}

// kWindow is the size of a square window. Its loops are unrolled, so that loads overlap. 0: any
// size, read at run time.
template <typename T, int kCount, int kWindow>
__global__ void __launch_bounds__(kThreads)
    max_pool(const T* __restrict__ src, T* __restrict__ dst, Pool pool, std::uint32_t items) {
  const std::uint32_t index = thread_index();
  if (index >= items) return;
  const Place at = place_of<kCount>(pool, index);
  const int top = static_cast<int>(at.row) * pool.stride_h - pool.pad_h;
  const int left = static_cast<int>(at.column) * pool.stride_w - pool.pad_w;
  const T* const image =
      src + static_cast<std::int64_t>(at.image) * pool.h * pool.w * pool.c + at.c;
  Vector<T, kCount> best;
#pragma unroll
  for (int i = 0; i < kCount; ++i) best.elements[i] = static_cast<T>(-INFINITY);
  const Vector<T, kCount> least = best;
  const int rows = kWindow > 0 ? kWindow : pool.r, columns = kWindow > 0 ? kWindow : pool.s;
  constexpr int kUnrolled = kWindow > 0 ? kWindow : 1, kAtOnce = kWindow > 0 ? kWindow : 4;
#pragma unroll kUnrolled
  for (int i = 0; i < rows; ++i) {
    const int y = top + i * pool.dilation_h;
#pragma unroll kAtOnce
    for (int j = 0; j < columns; ++j) {
      const int x = left + j * pool.dilation_w;
      const bool is_inside = y >= 0 && y < pool.h && x >= 0 && x < pool.w;
      const auto offset = (static_cast<std::int64_t>(y) * pool.w + x) * pool.c;
      best = largest(best, is_inside ? load<kCount>(image + offset) : least);
    }
  }
  store(dst + static_cast<std::int64_t>(index) * kCount, best);
}

// The rows or columns of an image that a window covers, and the number by which their sum is
// divided.
struct Span {
  int begin, end, divisor;
};

__device__ inline Span span_of(int index, int stride, int pad, int window, int size, bool padded) {
  const int from = index * stride - pad;
  const int to = from + window < size + pad ? from + window : size + pad;
  const int begin = from > 0 ? from : 0, end = to < size ? to : size;
  return {begin, end, padded ? to - from : end - begin};
}

__device__ inline Span adaptive_span(int index, int size, int parts) {
  const auto first = static_cast<std::int64_t>(index) * size;
  const int begin = static_cast<int>(first / parts);
  const int end = static_cast<int>((first + size + parts - 1) / parts);
  return {begin, end, end - begin};
}

// kWindow is as in max_pool.
template <typename T, int kCount, int kWindow>
__global__ void __launch_bounds__(kThreads)
    average_pool(const T* __restrict__ src, T* __restrict__ dst, Pool pool, std::uint32_t items) {
  const std::uint32_t index = thread_index();
  if (index >= items) return;
  const Place at = place_of<kCount>(pool, index);
  const int row = static_cast<int>(at.row), column = static_cast<int>(at.column);
  const bool is_adaptive = kWindow == 0 && pool.kind == Pool::kAdaptive,
             padded = pool.kind == Pool::kAveragePadded;
  const Span y = is_adaptive ? adaptive_span(row, pool.h, pool.p)
                             : span_of(row, pool.stride_h, pool.pad_h, pool.r, pool.h, padded);
  const Span x = is_adaptive ? adaptive_span(column, pool.w, pool.q)
                             : span_of(column, pool.stride_w, pool.pad_w, pool.s, pool.w, padded);
  const T* const image =
      src + static_cast<std::int64_t>(at.image) * pool.h * pool.w * pool.c + at.c;
  float sums[kCount] = {};
  const auto at_pixel = [&](int i, int j) {
    return image + (static_cast<std::int64_t>(i) * pool.w + j) * pool.c;
  };
  const auto add = [&](const Vector<T, kCount>& values) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] += static_cast<float>(values.elements[k]);
  };
  if constexpr (kWindow > 0) {
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
#pragma unroll
      for (int j = 0; j < kWindow; ++j) {
        const bool is_inside = y.begin + i < y.end && x.begin + j < x.end;
        add(load_if<kCount>(is_inside, at_pixel(y.begin + i, x.begin + j)));
      }
    }
  } else {
    for (int i = y.begin; i < y.end; ++i) {
#pragma unroll 4
      for (int j = x.begin; j < x.end; ++j) add(load<kCount>(at_pixel(i, j)));
    }
  }
  const float share = 1.0f / static_cast<float>(static_cast<std::int64_t>(y.divisor) * x.divisor);
#pragma unroll
  for (float& sum : sums) sum *= share;
  store_floats<kCount>(dst + static_cast<std::int64_t>(index) * kCount, sums);
}

// One block computes the means of `group` adjacent vectors of channels of one image. `group` is a
// power of two. The threads share the pixels.
inline constexpr unsigned kMeanThreads = 1024;  // at most

template <typename T, int kCount>
__global__ void __launch_bounds__(kMeanThreads)
    mean_with_barriers(const T* __restrict__ src, T* __restrict__ dst, unsigned pixels, int c,
                       int group) {
  constexpr unsigned kAtOnce = 4;  // the loads on their way
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto* const shared = reinterpret_cast<float*>(shared_bytes);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int vectors = c / kCount, blocks = (vectors + group - 1) / group;
  const int image = static_cast<int>(blockIdx.x) / blocks;
  const int vector = static_cast<int>(blockIdx.x) % blocks * group + thread % group;
  float sums[kCount] = {};
  if (vector < vectors) {
    const T* const from = src + (static_cast<std::int64_t>(image) * pixels * c + vector * kCount);
    const auto step = static_cast<unsigned>(threads / group);
    for (unsigned pixel = thread / group; pixel < pixels; pixel += kAtOnce * step) {
      Vector<T, kCount> values[kAtOnce];
#pragma unroll
      for (unsigned i = 0; i < kAtOnce; ++i) {
        const std::int64_t at = pixel + i * step;
        values[i] = load_if<kCount>(at < pixels, from + at * c);
      }
#pragma unroll
      for (const auto& each : values) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[k] += static_cast<float>(each.elements[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) shared[k * threads + thread] = sums[k];
  // A tree of sums in shared memory, down to the first threads: one for each vector.
  for (int half = threads / 2; half >= group; half /= 2) {
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int k = 0; k < kCount; ++k)
        shared[k * threads + thread] += shared[k * threads + thread + half];
    }
  }
  if (thread >= group || vector >= vectors) return;
  const float share = 1.0f / static_cast<float>(pixels);
#pragma unroll
  for (int k = 0; k < kCount; ++k) sums[k] = shared[k * threads + thread] * share;
  store_floats<kCount>(dst + (static_cast<std::int64_t>(image) * c + vector * kCount), sums);
}

namespace {

// Returns whether `pool` is the mean of each image. The window of a kAverage then has no padding.
bool is_mean(const Pool& pool) {
  if (pool.kind == Pool::kMax || pool.p != 1 || pool.q != 1) return false;
  return pool.kind == Pool::kAdaptive ||
         (pool.pad_h == 0 && pool.pad_w == 0 && pool.r == pool.h && pool.s == pool.w);
}

template <typename T, int kCount>
int enqueue_mean(const Pool& pool, const T* src, T* dst, void* stream) {
  const int vectors = pool.c / kCount;
  const auto pixels = static_cast<unsigned>(pool.h * pool.w);
  int group = 1;  // up to 8 vectors: 128 bytes of each pixel, if a vector has 16
  while (group < 8 && group < vectors) group *= 2;
  unsigned threads = 32;  // or more, as long as each has a pixel
  while (threads < kMeanThreads && threads * 2 <= std::int64_t{pixels} * group) threads *= 2;
  const std::int64_t blocks = std::int64_t{pool.n} * ((vectors + group - 1) / group);
  return enqueue(blocks, threads, sizeof(float) * threads * kCount, stream,
                 mean_with_barriers<T, kCount>, src, dst, pixels, pool.c, group);
}

template <typename T, int kCount>
int enqueue_pool(const Pool& pool, const T* src, T* dst, void* stream) {
  if (is_mean(pool)) return enqueue_mean<T, kCount>(pool, src, dst, stream);
  const std::int64_t items = std::int64_t{pool.n} * pool.p * pool.q * (pool.c / kCount);
  const auto launch = [&](auto kernel) {
    return enqueue_for_each(items, stream, kernel, src, dst, pool,
                            static_cast<std::uint32_t>(items));
  };
  const bool is_max = pool.kind == Pool::kMax;
  const int window = pool.kind == Pool::kAdaptive || pool.r != pool.s ? 0 : pool.r;
  switch (window) {
    case 2:
      return is_max ? launch(max_pool<T, kCount, 2>) : launch(average_pool<T, kCount, 2>);
    case 3:
      return is_max ? launch(max_pool<T, kCount, 3>) : launch(average_pool<T, kCount, 3>);
    case 5:
      if (is_max) return launch(max_pool<T, kCount, 5>);
      [[fallthrough]];
    default:
      return is_max ? launch(max_pool<T, kCount, 0>) : launch(average_pool<T, kCount, 0>);
  }
}

bool is_valid(const Pool& pool) {
  return Pool::kMax <= pool.kind && pool.kind <= Pool::kAdaptive && has_valid_window(pool) &&
         pool.h > 0 && pool.w > 0;
}

}  // namespace
}  // namespace torchalgo::cuda

int torchalgo_cuda_pool(const torchalgo::cuda::Pool* pool, const void* src, void* dst,
                        void* stream) {
  using namespace torchalgo::cuda;
  if (!is_valid(*pool)) return kInvalid;
  return with_type(pool->type, [&](auto element) {
    using T = decltype(element);
    const auto* const from = static_cast<const T*>(src);
    auto* const to = static_cast<T*>(dst);
    const int bytes = vector_bytes({src, dst}, static_cast<std::int64_t>(sizeof(T)) * pool->c);
    // Up to 128 threads share the pixels of a mean.
    const std::int64_t pixels =
        is_mean(*pool) ? std::min<std::int64_t>(std::int64_t{pool->h} * pool->w / 2, 128)
                       : std::int64_t{pool->p} * pool->q;
    return with_vector<T>(spread(bytes, pool->n * pixels * pool->c / kWidest<T>), [&](auto count) {
      return enqueue_pool<T, count>(*pool, from, to, stream);
    });
  });
}
