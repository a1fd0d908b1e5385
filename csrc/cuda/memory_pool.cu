// SPDX-License-Identifier: BSD-3-Clause
// Private pools of torch's allocator. torch's own CUDA graphs use them in the same way.
#include <c10/cuda/CUDACachingAllocator.h>
#include <dlfcn.h>

#include <atomic>
#include <exception>

#include "cuda/interface.h"

namespace {

using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

// Returns torch's allocator, or null if torch has none yet. Its library is not linked, so that this
// one can be loaded without it.
Allocator* allocator() {
  void* const library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  // c10::cuda::CUDACachingAllocator::allocator
  void* const found = dlsym(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE");
  return found == nullptr ? nullptr : static_cast<std::atomic<Allocator*>*>(found)->load();
}

// torch's own pools have a zero in one half.
c10::MempoolId_t id_of(std::uint64_t pool) { return {pool, pool}; }

}  // namespace

std::uint64_t torchalgo_cuda_open_pool(int device, void* stream) {
  static std::atomic<std::uint64_t> last = 0;
  Allocator* const torchs = allocator();
  if (torchs == nullptr) return 0;
  const std::uint64_t pool = ++last;
  try {
    torchs->beginAllocateToPool(
        static_cast<c10::DeviceIndex>(device), id_of(pool),
        [stream](cudaStream_t used) { return used == static_cast<cudaStream_t>(stream); });
  } catch (const std::exception&) {  // no exception may cross the C interface
    return 0;
  }
  return pool;
}

void torchalgo_cuda_close_pool(int device, std::uint64_t pool) {
  allocator()->endAllocateToPool(static_cast<c10::DeviceIndex>(device), id_of(pool));
}

void torchalgo_cuda_free_pool(int device, std::uint64_t pool) {
  allocator()->releasePool(static_cast<c10::DeviceIndex>(device), id_of(pool));
}
