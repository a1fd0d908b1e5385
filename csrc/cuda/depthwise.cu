// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/elements.h"

namespace torchalgo::cuda {

// The columns of dst that a thread computes. They share loads of src. The thread keeps a row of
// pixels and of weights in registers, and has fewer columns where these would not fit: of 16-bit
// elements, eight make a vector.
template <int kCount, int kWindow, int kStride>
inline constexpr int kStrip = kWindow == 0                                  ? 1
                              : kCount == 8 && kWindow == 7                 ? 2
                              : kCount == 8 && kWindow == 5 && kStride == 2 ? 3
                                                                            : 4;

// The sums of a thread: kCount channels of each column of its strip.
template <typename T, int kCount, int kColumns>
struct Sums {
  float of[kColumns][kCount] = {};

  __device__ void add(int column, const Vector<T, kCount>& a, const Vector<T, kCount>& b) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      of[column][i] += static_cast<float>(a.elements[i]) * static_cast<float>(b.elements[i]);
  }
};

// kWindow is the width of the filter and kStride the stride of columns, which are not dilated. If
// kWindow is 0, all of these are read at run time.
template <typename T, int kCount, int kWindow, int kStride>
__global__ void __launch_bounds__(kThreads, kWindow > 0 ? 2 : 4)
    depthwise(const T* __restrict__ src, const T* __restrict__ weights, const T* __restrict__ bias,
              const T* __restrict__ residual, T* __restrict__ dst, Depthwise problem,
              std::uint32_t items) {
  constexpr int kColumns = kStrip<kCount, kWindow, kStride>;
  const std::uint32_t index = thread_index();
  if (index >= items) return;
  const auto vectors = static_cast<std::uint32_t>(problem.c / kCount);
  const auto strips = static_cast<std::uint32_t>((problem.q + kColumns - 1) / kColumns);
  const std::uint32_t line = index / vectors / strips;  // of dst
  const auto c = static_cast<int>(index % vectors) * kCount;
  const auto first = static_cast<int>(index / vectors % strips) * kColumns;
  const int top =
      static_cast<int>(line % static_cast<std::uint32_t>(problem.p)) * problem.stride_h -
      problem.pad_h;
  const int left = first * problem.stride_w - problem.pad_w;
  const auto image = static_cast<std::int64_t>(line / static_cast<std::uint32_t>(problem.p));
  Sums<T, kCount, kColumns> sums;
  for (int i = 0; i < problem.r; ++i) {
    const int y = top + i * problem.dilation_h;
    if (y < 0 || y >= problem.h) continue;
    const T* const from = src + ((image * problem.h + y) * problem.w * problem.c + c);
    const T* const taps = weights + (static_cast<std::int64_t>(i) * problem.s * problem.c + c);
    const auto pixel = [&](int x) {
      const bool is_inside = x >= 0 && x < problem.w;
      return load_if<kCount>(is_inside, from + static_cast<std::int64_t>(x) * problem.c);
    };
    const auto tap = [&](int j) {
      return load<kCount>(taps + static_cast<std::int64_t>(j) * problem.c);
    };
    if constexpr (kWindow > 0) {
      constexpr int kPixels = (kColumns - 1) * kStride + kWindow;
      Vector<T, kCount> pixels[kPixels], row[kWindow];
#pragma unroll
      for (int k = 0; k < kPixels; ++k) pixels[k] = pixel(left + k);
#pragma unroll
      for (int j = 0; j < kWindow; ++j) row[j] = tap(j);
#pragma unroll
      for (int j = 0; j < kWindow; ++j) {
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
          sums.add(column, pixels[column * kStride + j], row[j]);
      }
    } else {
#pragma unroll 4
      for (int j = 0; j < problem.s; ++j) sums.add(0, pixel(left + j * problem.dilation_w), tap(j));
    }
  }
  float shift[kCount] = {};
  if (bias != nullptr) to_floats(shift, load<kCount>(bias + c));
  const auto offset = (static_cast<std::int64_t>(line) * problem.q + first) * problem.c + c;
  Vector<T, kCount> others[kColumns] = {};
  if (residual != nullptr) {
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const T* const address = residual + offset + static_cast<std::int64_t>(column) * problem.c;
      others[column] = load_if<kCount>(first + column < problem.q, address);
    }
  }
  // Not unrolled, since its code is long: the next column moves to the first place instead.
#pragma unroll 1
  for (int column = 0; column < kColumns && first + column < problem.q; ++column) {
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      values[i] = sums.of[0][i] + shift[i] + static_cast<float>(others[0].elements[i]);
    activate<T, true>(values, problem.activation);
    store_floats<kCount>(dst + offset + static_cast<std::int64_t>(column) * problem.c, values);
#pragma unroll
    for (int k = 1; k < kColumns; ++k) {
      others[k - 1] = others[k];
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums.of[k - 1][i] = sums.of[k][i];
    }
  }
}

namespace {

template <typename T>
struct Pointers {
  const T *src, *weights, *bias, *residual;
  T* dst;
};

template <typename T, int kCount, int kWindow, int kStride>
int enqueue_depthwise(const Depthwise& problem, const Pointers<T>& at, void* stream) {
  constexpr int kColumns = kStrip<kCount, kWindow, kStride>;
  const std::int64_t strips = (problem.q + kColumns - 1) / kColumns;
  const std::int64_t items = problem.n * strips * problem.p * (problem.c / kCount);
  return enqueue_for_each(items, stream, depthwise<T, kCount, kWindow, kStride>, at.src, at.weights,
                          at.bias, at.residual, at.dst, problem, static_cast<std::uint32_t>(items));
}

template <typename T, int kCount, int kWindow>
int enqueue_window(const Depthwise& problem, const Pointers<T>& at, void* stream) {
  return problem.stride_w == 1 ? enqueue_depthwise<T, kCount, kWindow, 1>(problem, at, stream)
                               : enqueue_depthwise<T, kCount, kWindow, 2>(problem, at, stream);
}

// Returns whether a kernel has the width of the filter and the stride as constants.
bool has_window(const Depthwise& problem) {
  return (problem.s == 3 || problem.s == 5 || problem.s == 7) && problem.stride_w <= 2 &&
         problem.dilation_w == 1;
}

template <typename T, int kCount>
int enqueue_any(const Depthwise& problem, const Pointers<T>& at, void* stream) {
  // An odd number of 16-bit channels is rare.
  if constexpr (kCount * sizeof(T) >= 4) {
    if (has_window(problem)) {
      if (problem.s == 3) return enqueue_window<T, kCount, 3>(problem, at, stream);
      if (problem.s == 5) return enqueue_window<T, kCount, 5>(problem, at, stream);
      return enqueue_window<T, kCount, 7>(problem, at, stream);
    }
  }
  return enqueue_depthwise<T, kCount, 0, 0>(problem, at, stream);
}

bool is_valid(const Depthwise& problem) {
  return has_valid_window(problem) && is_small_enough(problem.r, problem.s, problem.c) &&
         is_short_or_none(problem.activation);
}

}  // namespace
}  // namespace torchalgo::cuda

int torchalgo_cuda_depthwise(const torchalgo::cuda::Depthwise* problem, const void* src,
                             const void* weights, const void* bias, const void* residual, void* dst,
                             void* stream) {
  using namespace torchalgo::cuda;
  if (!is_valid(*problem)) return kInvalid;
  return with_type(problem->type, [&](auto element) {
    using T = decltype(element);
    const auto of = [](const void* data) { return static_cast<const T*>(data); };
    const Pointers<T> at = {of(src), of(weights), of(bias), of(residual), static_cast<T*>(dst)};
    const int bytes =
        vector_bytes({src, weights, bias, residual, dst}, std::int64_t{sizeof(T)} * problem->c);
    const std::int64_t results = std::int64_t{problem->n} * problem->p * problem->q * problem->c;
    return with_vector<T>(spread(bytes, results / (4 * kWidest<T>)),
                          [&](auto count) { return enqueue_any<T, count>(*problem, at, stream); });
  });
}
