// SPDX-License-Identifier: BSD-3-Clause
#include "provider/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <algorithm>

#include "provider/page_pool.h"
#include "provider/tensor_shape.h"
#include "provider/weights.h"

namespace torchalgo {
namespace {

// For a few pages a heap is as good.
constexpr std::size_t kLeastPooled = std::size_t{16} << 10;
constexpr std::size_t kMostIdle = std::size_t{256} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsPooled = false;  // a pool would hide errors from a sanitizer
#else
constexpr bool kIsPooled = true;
#endif

// The pools outlive every tensor, also those of other static objects. Weights have their own pool,
// because they live long and would fragment the memory of results.
PagePool& results() {
  static auto* const pool = new PagePool(kMostIdle);
  return *pool;
}
PagePool& weights_pool() {
  static auto* const pool = new PagePool(0);
  return *pool;
}

at::Tensor empty_in(PagePool& pool, at::IntArrayRef sizes, at::IntArrayRef strides,
                    at::ScalarType dtype) {
  const std::size_t bytes =
      at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  if (!kIsPooled || bytes < kLeastPooled) {
    return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype));
  }
  void* const data = pool.take(bytes);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      c10::DataPtr(data, data, &PagePool::give, at::kCPU), c10::GetCPUAllocator(),
      /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

}  // namespace

at::Tensor empty_reused(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                        at::Device device) {
  if (device.is_cpu()) return empty_in(results(), sizes, strides, dtype);
  return at::empty_strided(sizes, strides, at::TensorOptions().dtype(dtype).device(device));
}

at::Tensor empty_tensor(const std::vector<std::int64_t>& sizes, DType dtype, Layout layout,
                        at::Device device) {
  const TensorShape shape = shape_in(sizes, layout);
  return empty_reused(shape.sizes, shape.strides, scalar_type(element_type(layout, dtype)), device);
}

at::Tensor empty_result(const Problem& problem, Layout layout, at::Device device) {
  return empty_tensor(result_sizes(problem), dtype_of(problem), layout, device);
}

bool lies_in_its_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return true;
  std::int64_t last = tensor.storage_offset();  // the greatest index of an element
  if (last < 0) return false;
  bool is_empty = false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    const std::int64_t size = tensor.size(i), stride = tensor.stride(i);
    std::int64_t far = 0;
    if (size < 0 || stride < 0) return false;
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(std::max<std::int64_t>(size - 1, 0), stride, &far) ||
        __builtin_add_overflow(last, far, &last))
      return false;
  }
  const std::size_t elements = tensor.storage().nbytes() / tensor.element_size();
  return is_empty || static_cast<std::size_t>(last) < elements;
}

at::Tensor on_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(C10_AS_INTARRAYREF_SLOW_ALLOC(tensor.sym_sizes()),
                           C10_AS_INTARRAYREF_SLOW_ALLOC(tensor.sym_strides()),
                           tensor.options().device(at::kMeta));
}

at::Tensor copy_reused(const at::Tensor& tensor) {
  return empty_reused(tensor.sizes(), tensor.strides(), tensor.scalar_type(), tensor.device())
      .copy_(tensor);
}

at::Tensor empty_bytes(std::int64_t bytes, at::Device device) {
  return empty_reused({bytes}, {1}, at::kByte, device);
}

at::Tensor copy_to_weight_pages(const at::Tensor& tensor) {
  return empty_in(weights_pool(), tensor.sizes(), tensor.strides(), tensor.scalar_type())
      .copy_(tensor);
}

KeptMemory::KeptMemory(std::int64_t bytes) : bytes_(bytes) { results().keep_idle(bytes_); }
KeptMemory::~KeptMemory() { results().keep_idle(-bytes_); }

void release_idle_memory() {
  results().release_idle();
  weights_pool().release_idle();
}

}  // namespace torchalgo
