// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/elements.h"

namespace torchalgo::cuda {

// The columns of dst that a thread computes for its channels, so that they share loads of src.
template <int kWindow>
inline constexpr int kStrip = kWindow > 0 ? 4 : 1;

// The activations of few instructions, since their code is repeated for each element of a vector.
// SiLU uses CUDA's fast approximations, unlike activated().
enum class Gate : int { kNone, kHardswish, kSilu };
struct ShortActivation {
  float low = -INFINITY, high = INFINITY;  // clamps x first
  Gate gate = Gate::kNone;
};

template <int kCount>
__device__ void activate(float (&x)[kCount], const ShortActivation& activation) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = clamped(x[i], activation.low, activation.high);
  if (activation.gate == Gate::kHardswish) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] *= clamped(x[i] + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f);
  } else if (activation.gate == Gate::kSilu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = __fdividef(x[i], 1.0f + __expf(-x[i]));
  }
}

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
              ShortActivation activation, std::uint32_t items) {
  constexpr int kColumns = kStrip<kWindow>;
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
      return load<kCount>(from + static_cast<std::int64_t>(x) * problem.c);
    };
    const auto tap = [&](int j) {
      return load<kCount>(taps + static_cast<std::int64_t>(j) * problem.c);
    };
    if constexpr (kWindow > 0) {
      Vector<T, kCount> row[kWindow];
#pragma unroll
      for (int j = 0; j < kWindow; ++j) row[j] = tap(j);
#pragma unroll
      for (int k = 0; k < (kColumns - 1) * kStride + kWindow; ++k) {
        const int x = left + k;
        if (x < 0 || x >= problem.w) continue;
        const auto values = pixel(x);
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
          const int j = k - column * kStride;
          if (j >= 0 && j < kWindow) sums.add(column, values, row[j]);
        }
      }
    } else {
#pragma unroll 2
      for (int j = 0; j < problem.s; ++j) {
        const int x = left + j * problem.dilation_w;
        if (x >= 0 && x < problem.w) sums.add(0, pixel(x), tap(j));
      }
    }
  }
  Vector<T, kCount> shift{};
  if (bias != nullptr) shift = load<kCount>(bias + c);
    // Not unrolled, since its code is long: the sums move up instead.
#pragma unroll 1
  for (int column = 0; column < kColumns && first + column < problem.q; ++column) {
    const auto offset =
        (static_cast<std::int64_t>(line) * problem.q + first + column) * problem.c + c;
    Vector<T, kCount> result{}, other{};
    if (residual != nullptr) other = load<kCount>(residual + offset);
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = sums.of[0][i] + static_cast<float>(shift.elements[i]) +
                  static_cast<float>(other.elements[i]);
    }
    activate(values, activation);
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.elements[i] = static_cast<T>(values[i]);
    store(dst + offset, result);
#pragma unroll
    for (int k = 1; k < kColumns; ++k) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums.of[k - 1][i] = sums.of[k][i];
    }
  }
}

namespace {

ShortActivation short_form(const Activation& activation) {
  using enum ActivationKind;
  switch (static_cast<ActivationKind>(activation.kind)) {
    case kRelu:
      return {.low = 0.0f};
    case kRelu6:
      return {.low = 0.0f, .high = 6.0f};
    case kClamp:
      return {.low = activation.numbers[0], .high = activation.numbers[1]};
    case kHardswish:
      return {.gate = Gate::kHardswish};
    case kSilu:
      return {.gate = Gate::kSilu};
    default:
      return {};
  }
}

bool has_short_form(const Activation& activation) {
  using enum ActivationKind;
  return activation.kind == -1 ||
         (is_activation(activation) && activation.kind <= static_cast<int>(kSilu));
}

template <typename T>
struct Pointers {
  const T *src, *weights, *bias, *residual;
  T* dst;
};

template <typename T, int kCount, int kWindow, int kStride>
int enqueue_depthwise(const Depthwise& problem, const Pointers<T>& at, void* stream) {
  constexpr int kColumns = kStrip<kWindow>;
  const std::int64_t strips = (problem.q + kColumns - 1) / kColumns;
  const std::int64_t items = problem.n * strips * problem.p * (problem.c / kCount);
  return enqueue_for_each(items, stream, depthwise<T, kCount, kWindow, kStride>, at.src, at.weights,
                          at.bias, at.residual, at.dst, problem, short_form(problem.activation),
                          static_cast<std::uint32_t>(items));
}

template <typename T, int kWindow>
int enqueue_window(const Depthwise& problem, const Pointers<T>& at, void* stream) {
  return problem.stride_w == 1 ? enqueue_depthwise<T, kWidest<T>, kWindow, 1>(problem, at, stream)
                               : enqueue_depthwise<T, kWidest<T>, kWindow, 2>(problem, at, stream);
}

template <typename T>
int enqueue_wide(const Depthwise& problem, const Pointers<T>& at, void* stream) {
  if (problem.stride_w <= 2 && problem.dilation_w == 1) {
    if (problem.s == 3) return enqueue_window<T, 3>(problem, at, stream);
    if (problem.s == 5) return enqueue_window<T, 5>(problem, at, stream);
    if (problem.s == 7) return enqueue_window<T, 7>(problem, at, stream);
  }
  return enqueue_depthwise<T, kWidest<T>, 0, 0>(problem, at, stream);
}

bool is_valid(const Depthwise& problem) {
  return has_valid_window(problem) && is_small_enough(problem.r, problem.s, problem.c) &&
         has_short_form(problem.activation);
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
    const bool is_wide =
        are_aligned({src, weights, bias, residual, dst}, std::int64_t{sizeof(T)} * problem->c);
    return is_wide ? enqueue_wide(*problem, at, stream)
                   : enqueue_depthwise<T, 1, 0, 0>(*problem, at, stream);
  });
}
