// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

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

/// Returns whether vectors of 16 bytes can be loaded from all addresses, of which some may be null,
/// and from all rows, which are `row_bytes` apart.
inline bool are_aligned(std::initializer_list<const void*> addresses, std::int64_t row_bytes) {
  return row_bytes % 16 == 0 && std::ranges::all_of(addresses, [](const void* address) {
           return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
         });
}

enum class ActivationKind : int {
#define TORCHALGO_ENUMERATOR(enumerator, ...) k##enumerator,
  TORCHALGO_ACTIVATIONS(TORCHALGO_ENUMERATOR)
#undef TORCHALGO_ENUMERATOR
      kCount
};

inline bool is_activation(const Activation& activation) {
  return -1 <= activation.kind && activation.kind < static_cast<int>(ActivationKind::kCount);
}

__device__ inline float clamped(float x, float low, float high) {
  return x < low ? low : x > high ? high : x;  // a NaN stays one: comparisons with it are false
}

/// Returns torch's function of the same name.
__device__ inline float activated(float x, const Activation& activation) {
  using enum ActivationKind;
  const float first = activation.numbers[0];
  switch (static_cast<ActivationKind>(activation.kind)) {
    case kRelu:
      return clamped(x, 0.0f, INFINITY);
    case kRelu6:
      return clamped(x, 0.0f, 6.0f);
    case kClamp:
      return clamped(x, first, activation.numbers[1]);
    case kHardswish:
      return x * clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f;
    case kSilu:
      return x / (1.0f + expf(-x));
    case kSigmoid:
      return 1.0f / (1.0f + expf(-x));
    case kHardsigmoid:
      return clamped(x + 3.0f, 0.0f, 6.0f) / 6.0f;
    case kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case kMish:
      return x * tanhf(x > 20.0f ? x : log1pf(expf(x)));
    case kTanh:
      return tanhf(x);
    case kElu:
      return x > 0.0f ? x : first * expm1f(x);
    case kLeakyRelu:
      return x > 0.0f ? x : first * x;
    default:
      return x;
  }
}

/// The threads of a block of each kernel without shared memory.
inline constexpr unsigned kThreads = 256;

/// The number of the running thread among those of all blocks.
__device__ inline std::uint32_t thread_index() { return blockIdx.x * kThreads + threadIdx.x; }

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
  if (status != cudaSuccess) cudaGetLastError();  // the caller reports it: no later call must
  return static_cast<int>(status);
}

/// Enqueues `kernel` with a thread for each of `items`.
template <typename... Parameters>
int enqueue_for_each(std::int64_t items, void* stream, void (*kernel)(Parameters...),
                     const Parameters&... arguments) {
  return enqueue((items + kThreads - 1) / kThreads, kThreads, 0, stream, kernel, arguments...);
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
