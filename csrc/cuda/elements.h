// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "cuda/interface.h"
#include "ir/activations.h"

// Tools of the kernels: elements of three types, vectors of them, activations, launches.

namespace torchalgo::cuda {

/// kCount elements that are loaded or stored by one instruction.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T elements[kCount];
};

/// The elements of a load of 16 bytes, the widest one here.
template <typename T>
inline constexpr int kWidest = 16 / static_cast<int>(sizeof(T));

template <int kCount, typename T>
__device__ Vector<T, kCount> load(const T* address) {
  return *reinterpret_cast<const Vector<T, kCount>*>(address);
}

template <int kCount, typename T>
__device__ void store(T* address, const Vector<T, kCount>& values) {
  *reinterpret_cast<Vector<T, kCount>*>(address) = values;
}

/// Returns the size of the widest vectors that can be loaded from all addresses, of which some may
/// be null, and from all rows, which are `row_bytes` apart: a power of two, at most 16 bytes.
inline int vector_bytes(std::initializer_list<const void*> addresses, std::int64_t row_bytes) {
  std::uintptr_t all = 16U | static_cast<std::uintptr_t>(row_bytes);
  for (const void* address : addresses) all |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<int>(all & (~all + 1));
}

/// Calls `run` with the elements of a vector as a std::integral_constant, and returns its result. A
/// vector has 16 bytes, or 4 if `bytes` is less, or one element.
template <typename T, typename Run>
int with_vector(int bytes, const Run& run) {
  constexpr int kNarrow = 4 / static_cast<int>(sizeof(T));
  if (bytes >= 16) return run(std::integral_constant<int, kWidest<T>>());
  if (bytes >= 4) return run(std::integral_constant<int, kNarrow>());
  return run(std::integral_constant<int, 1>());
}

/// Loads a vector, or zeros if it is outside of its tensor. There is no branch, behind which the
/// next load would wait.
template <int kCount, typename T>
__device__ Vector<T, kCount> load_if(bool is_inside, const T* address) {
  const Vector<T, kCount> none{};
  return is_inside ? load<kCount>(address) : none;
}

template <typename T, int kCount>
__device__ void to_floats(float (&values)[kCount], const Vector<T, kCount>& vector) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = static_cast<float>(vector.elements[i]);
}

/// Rounds to elements of type T, and stores them.
template <int kCount, typename T>
__device__ void store_floats(T* address, const float* values) {
  Vector<T, kCount> vector;
#pragma unroll
  for (int i = 0; i < kCount; ++i) vector.elements[i] = static_cast<T>(values[i]);
  store(address, vector);
}

enum class ActivationKind : int {
#define TORCHALGO_ENUMERATOR(enumerator, ...) k##enumerator,
  TORCHALGO_ACTIVATIONS(TORCHALGO_ENUMERATOR)
#undef TORCHALGO_ENUMERATOR
      kEnd
};

inline bool is_activation_or_none(const Activation& activation) {
  return -1 <= activation.kind && activation.kind < static_cast<int>(ActivationKind::kEnd);
}

inline bool is_short_or_none(const Activation& activation) {
  return is_activation_or_none(activation) &&
         activation.kind <= static_cast<int>(ActivationKind::kSilu);
}

__device__ inline float clamped(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;  // a NaN stays one: comparisons with it are false
}

/// Quick variants: the last bits of the f32 may be wrong, which a 16-bit element does not keep. A
/// quotient below 1e-38 may be 0.
template <bool kIsQuick>
__device__ float exponential(float x) {
  return kIsQuick ? __expf(x) : expf(x);
}
template <bool kIsQuick>
__device__ float quotient(float x, float y) {
  return kIsQuick ? __fdividef(x, y) : x / y;
}

/// Replaces each x by torch's function of the activation's name, computed for elements of type T.
/// If kIsShort is set, only those of is_short_or_none() have code.
template <typename T, bool kIsShort = false, int kCount>
__device__ void activate(float (&values)[kCount], const Activation& activation) {
  using enum ActivationKind;
  constexpr bool kIsQuick = sizeof(T) == 2;
  const float first = activation.numbers[0], second = activation.numbers[1];
  const auto each = [&](const auto& function) {
#pragma unroll
    for (float& x : values) x = function(x);
  };
  const auto sixth = [](float x) { return clamped(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f); };
  const auto scaled = [](float x, float exponent) {  // x times the sigmoid of the exponent
    return quotient<kIsQuick>(x, 1.0f + exponential<kIsQuick>(-exponent));
  };
  if (kIsShort && activation.kind > static_cast<int>(kSilu))
    return;  // the compiler drops the other cases
  switch (static_cast<ActivationKind>(activation.kind)) {
    case kRelu:
      return each([](float x) { return clamped(x, 0.0f, INFINITY); });
    case kRelu6:
      return each([](float x) { return clamped(x, 0.0f, 6.0f); });
    case kClamp:
      return each([&](float x) { return clamped(x, first, second); });
    case kHardswish:
      return each([&](float x) { return x * sixth(x); });
    case kSilu:
      return each([&](float x) { return scaled(x, x); });
    case kSigmoid:
      return each([&](float x) { return scaled(1.0f, x); });
    case kHardsigmoid:
      return each(sixth);
    case kGelu:
      return each([](float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); });
    case kGeluTanh:  // 1 + tanh(y) is twice the sigmoid of 2 y
      return each([&](float x) { return scaled(x, 1.59576912f * (x + 0.044715f * x * x * x)); });
    case kMish:  // tanh(log(1 + e)) is n / (n + 2), where n = e * (e + 2)
      return each([](float x) {
        const float e = exponential<kIsQuick>(clamped(x, -INFINITY, 20.0f)), n = e * (e + 2.0f);
        return x * quotient<kIsQuick>(n, n + 2.0f);
      });
    case kTanh:
      return each([](float x) { return tanhf(x); });
    case kElu:
      return each([&](float x) { return x > 0.0f ? x : first * expm1f(x); });
    case kLeakyRelu:
      return each([&](float x) { return x > 0.0f ? x : first * x; });
    default:
      return;
  }
}

/// The most threads of a block of each kernel without shared memory.
inline constexpr unsigned kThreads = 256;

/// Returns whether so many threads would leave most of the current GPU idle: each multiprocessor
/// gets less than `warps`. Then smaller blocks and narrower vectors are faster.
inline bool are_few(std::int64_t threads, int warps) {
  int device = 0, multiprocessors = 0;
  const bool is_known = cudaGetDevice(&device) == cudaSuccess &&
                        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount,
                                               device) == cudaSuccess;
  return is_known && threads < std::int64_t{32} * warps * multiprocessors;
}

/// Returns the size of vectors: `bytes`, but at most 4 if `wide_threads`, the threads with 16 bytes
/// each, are few.
inline int spread(int bytes, std::int64_t wide_threads) {
  return are_few(wide_threads, 8) ? std::min(bytes, 4) : bytes;
}

/// The number of the running thread among those of all blocks.
__device__ inline std::uint32_t thread_index() { return blockIdx.x * blockDim.x + threadIdx.x; }

/// Enqueues `kernel`, unless there are no blocks, and returns CUDA's status.
template <typename... Parameters>
int enqueue(std::int64_t blocks, unsigned threads, std::size_t shared_bytes, void* stream,
            void (*kernel)(Parameters...), const Parameters&... arguments) {
  if (blocks == 0) return static_cast<int>(cudaSuccess);
  cudaLaunchConfig_t config{};  // instead of <<<>>>, which the C++ compiler of the test lacks
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (status != cudaSuccess) cudaGetLastError();  // so that no later call reports it again
  return static_cast<int>(status);
}

/// Enqueues `kernel` with a thread for each of `items`.
template <typename... Parameters>
int enqueue_for_each(std::int64_t items, void* stream, void (*kernel)(Parameters...),
                     const Parameters&... arguments) {
  const unsigned threads = are_few(items, 64) ? 64 : kThreads;
  return enqueue((items + threads - 1) / threads, threads, 0, stream, kernel, arguments...);
}

inline constexpr int kInvalid = static_cast<int>(cudaErrorInvalidValue);

/// Returns whether a tensor of these sizes is one that the interface describes.
template <typename... Sizes>
bool is_small_enough(Sizes... sizes) {
  std::int64_t elements = 1;
  return ((sizes >= 0 && (elements *= sizes) < kElementLimit) && ...);
}

/// Returns whether the sizes and the window of a Pool or a Depthwise are ones that the interface
/// describes.
template <typename Args>
bool has_valid_window(const Args& args) {
  return is_small_enough(args.n, args.h, args.w, args.c) &&
         is_small_enough(args.n, args.p, args.q, args.c) && args.pad_h >= 0 && args.pad_w >= 0 &&
         std::min(
             {args.r, args.s, args.stride_h, args.stride_w, args.dilation_h, args.dilation_w}) > 0;
}

/// Calls `run` with a value of the C++ type of `type`, and returns its result;
/// cudaErrorInvalidValue for another type.
template <typename Run>
int with_type(int type, const Run& run) {
  switch (type) {
    case kFloat:
      return run(float());
    case kHalf:
      return run(__half());
    case kBfloat16:
      return run(__nv_bfloat16());
    default:
      return kInvalid;
  }
}

}  // namespace torchalgo::cuda
