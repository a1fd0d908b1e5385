// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/elements.h"

namespace torchalgo::cuda {

// The vectors of b and shift that belong to a vector of a, as indices.
struct Operands {
  std::uint32_t second, shift;
};

__device__ inline Operands operands_of(const Pointwise& pointwise, std::uint32_t index,
                                       std::uint32_t vectors) {
  if (pointwise.kind == Pointwise::kAffine) return {index % vectors, index % vectors};
  if (!pointwise.channelwise) return {index, 0};
  const std::uint32_t image = index / (vectors * static_cast<std::uint32_t>(pointwise.pixels));
  return {image * vectors + index % vectors, 0};
}

// Computes the operation without its activation in place of a.
template <int kCount>
__device__ void combine(int kind, float (&a)[kCount], const float (&b)[kCount],
                        const float (&shift)[kCount]) {
  const auto each = [&](const auto& function) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) a[i] = function(a[i], b[i], shift[i]);
  };
  switch (kind) {
    case Pointwise::kAdd:
      return each([](float x, float y, float) { return x + y; });
    case Pointwise::kSub:
      return each([](float x, float y, float) { return x - y; });
    case Pointwise::kMul:
      return each([](float x, float y, float) { return x * y; });
    case Pointwise::kAffine:
      return each([](float x, float y, float z) { return x * y + z; });
    default:
      return;
  }
}

// `vectors` is the number of vectors of the c channels of a pixel.
template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads)
    pointwise(const T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ shift,
              T* __restrict__ dst, Pointwise problem, std::uint32_t vectors, std::uint32_t items) {
  const std::uint32_t index = thread_index();
  if (index >= items) return;
  const Operands operands = operands_of(problem, index, vectors);
  const auto at = [](std::uint32_t vector) { return static_cast<std::int64_t>(vector) * kCount; };
  const auto own = load<kCount>(a + at(index));
  const auto other = load_if<kCount>(b != nullptr, b + at(operands.second));
  const auto added = load_if<kCount>(shift != nullptr, shift + at(operands.shift));
  float values[kCount], second[kCount], third[kCount];
  to_floats(values, own);
  to_floats(second, other);
  to_floats(third, added);
  combine(problem.kind, values, second, third);
  activate<T>(values, problem.activation);
  store_floats<kCount>(dst + at(index), values);
}

namespace {

template <typename T, int kCount>
int enqueue_pointwise(const Pointwise& problem, std::int64_t elements, const T* a, const T* b,
                      const T* shift, T* dst, void* stream) {
  return enqueue_for_each(elements / kCount, stream, pointwise<T, kCount>, a, b, shift, dst,
                          problem, static_cast<std::uint32_t>(problem.c / kCount),
                          static_cast<std::uint32_t>(elements / kCount));
}

bool is_valid(const Pointwise& problem, const void* b, const void* shift) {
  const bool is_affine = problem.kind == Pointwise::kAffine;
  return Pointwise::kActivation <= problem.kind && problem.kind <= Pointwise::kAffine &&
         (b == nullptr) == (problem.kind == Pointwise::kActivation) &&
         (shift == nullptr) == !is_affine && is_activation_or_none(problem.activation) &&
         (!problem.channelwise || problem.kind == Pointwise::kAdd ||
          problem.kind == Pointwise::kMul) &&
         is_small_enough(problem.n, problem.pixels, problem.c);
}

}  // namespace
}  // namespace torchalgo::cuda

int torchalgo_cuda_pointwise(const torchalgo::cuda::Pointwise* pointwise, const void* a,
                             const void* b, const void* shift, void* dst, void* stream) {
  using namespace torchalgo::cuda;
  if (!is_valid(*pointwise, b, shift)) return kInvalid;
  return with_type(pointwise->type, [&](auto element) {
    using T = decltype(element);
    const bool by_channel = pointwise->kind == Pointwise::kAffine || pointwise->channelwise;
    const std::int64_t elements = std::int64_t{pointwise->n} * pointwise->pixels * pointwise->c;
    // Without channels, all elements are one row.
    const auto row_bytes =
        static_cast<std::int64_t>(sizeof(T)) * (by_channel ? pointwise->c : elements);
    return with_vector<T>(vector_bytes({a, b, shift, dst}, row_bytes), [&](auto count) {
      return enqueue_pointwise<T, count>(*pointwise, elements, static_cast<const T*>(a),
                                         static_cast<const T*>(b), static_cast<const T*>(shift),
                                         static_cast<T*>(dst), stream);
    });
  });
}
