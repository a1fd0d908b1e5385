// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/elements.h"

namespace torchalgo::cuda {

// Returns the sum of the values of `group` adjacent threads, to each of them. All threads of a warp
// call it.
__device__ inline float sum_of_group(float value, int group) {
  for (int distance = group / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(~0U, value, distance);
  return value;
}

// `group` threads compute a pixel: a power of two, at most a warp. They read its channels up to
// three times, and all but the first time from the cache.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    layer_norm(const T* __restrict__ src, const T* __restrict__ scale, const T* __restrict__ shift,
               T* __restrict__ dst, LayerNorm norm, int group) {
  const int pixel = static_cast<int>(thread_index() / static_cast<unsigned>(group));
  const int lane = static_cast<int>(threadIdx.x) % group;
  const int end = pixel < norm.pixels ? norm.c / kCount : 0;  // other threads have no vectors
  const std::int64_t first = static_cast<std::int64_t>(pixel) * norm.c;
  const auto for_each_vector = [&](const auto& run) {
#pragma unroll 4
    for (int vector = lane; vector < end; vector += group) {
      float values[kCount];
      to_floats(values, load<kCount>(src + first + vector * kCount));
      run(vector * kCount, values);
    }
  };
  const auto channels = static_cast<float>(norm.c);
  float mean = 0.0f, squares = 0.0f;
  if (norm.kind != LayerNorm::kRms) {
    for_each_vector([&](int, const float(&values)[kCount]) {
#pragma unroll
      for (const float x : values) mean += x;
    });
    mean = sum_of_group(mean, group) / channels;
  }
  for_each_vector([&](int, const float(&values)[kCount]) {
#pragma unroll
    for (const float x : values) squares += (x - mean) * (x - mean);
  });
  squares = sum_of_group(squares, group);
  const bool is_of_sample = norm.kind == LayerNorm::kVariance;
  const float spread = squares / (is_of_sample ? channels - 1.0f : channels);
  const float factor = 1.0f / sqrtf(spread + norm.epsilon);
  const float center = is_of_sample ? 0.0f : mean;
  for_each_vector([&](int channel, float(&values)[kCount]) {
    float scales[kCount], shifts[kCount];
    to_floats(scales, load<kCount>(scale + channel));
    to_floats(shifts, load<kCount>(shift + channel));
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      values[i] = (values[i] - center) * factor * scales[i] + shifts[i];
    store_floats<kCount>(dst + first + channel, values);
  });
}

namespace {

template <typename T, int kCount>
int enqueue_layer_norm(const LayerNorm& norm, const T* src, const T* scale, const T* shift, T* dst,
                       void* stream) {
  int group = 1;
  while (group < 32 && group * 2 <= norm.c / kCount) group *= 2;
  const std::int64_t items = norm.c > 0 ? std::int64_t{norm.pixels} * group : 0;
  return enqueue_for_each(items, stream, layer_norm<T, kCount>, src, scale, shift, dst, norm,
                          group);
}

bool is_valid(const LayerNorm& norm) {
  return LayerNorm::kLayer <= norm.kind && norm.kind <= LayerNorm::kVariance &&
         is_small_enough(norm.pixels, norm.c) && norm.c < kElementLimit / 2;
}

}  // namespace
}  // namespace torchalgo::cuda

int torchalgo_cuda_layer_norm(const torchalgo::cuda::LayerNorm* norm, const void* src,
                              const void* scale, const void* shift, void* dst, void* stream) {
  using namespace torchalgo::cuda;
  if (!is_valid(*norm)) return kInvalid;
  return with_type(norm->type, [&](auto element) {
    using T = decltype(element);
    const auto row_bytes = static_cast<std::int64_t>(sizeof(T)) * norm->c;
    return with_vector<T>(vector_bytes({src, scale, shift, dst}, row_bytes), [&](auto count) {
      return enqueue_layer_norm<T, count>(
          *norm, static_cast<const T*>(src), static_cast<const T*>(scale),
          static_cast<const T*>(shift), static_cast<T*>(dst), stream);
    });
  });
}
