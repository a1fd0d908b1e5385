// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ucontext.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

// Runs CUDA kernels on the CPU: a source file of CUDA is compiled as C++ behind this header. The
// threads of a block are contexts that take turns. Each runs until __syncthreads() or its end.

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__

namespace software_gpu {

inline constexpr std::size_t kSharedBytes = 48 << 10;  // what every GPU gives unasked
inline constexpr unsigned kMostBlocks = 3;  // a launch gets no more, so that blocks have more tiles
inline constexpr std::size_t kStackBytes = 64 << 10;

/// One block of threads.
class Block {
 public:
  /// Runs `kernel` in every thread, and fails the test if some wait at a barrier that others miss.
  static void run(unsigned threads, const std::function<void()>& kernel);
  static void wait();

  static inline bool has_barriers = true;  // false: to see that the tests need them
  static inline unsigned thread = 0;

 private:
  static void enter() {
    (*kernel_)();
    ended_[thread] = true;
  }

  static inline const std::function<void()>* kernel_ = nullptr;
  static inline ucontext_t scheduler_;
  static inline std::vector<ucontext_t> contexts_;
  static inline std::vector<char> ended_;
};

inline void Block::wait() {
  if (has_barriers) swapcontext(&contexts_[thread], &scheduler_);
}

inline void Block::run(unsigned threads, const std::function<void()>& kernel) {
  static std::vector<char> stacks;
  stacks.resize(threads * kStackBytes);
  kernel_ = &kernel;
  contexts_.assign(threads, {});
  ended_.assign(threads, 0);
  for (unsigned i = 0; i < threads; ++i) {
    getcontext(&contexts_[i]);
    contexts_[i].uc_stack.ss_sp = stacks.data() + i * kStackBytes;
    contexts_[i].uc_stack.ss_size = kStackBytes;
    contexts_[i].uc_link = &scheduler_;
    makecontext(&contexts_[i], &Block::enter, 0);
  }
  for (bool is_reverse = false; !ended_[0]; is_reverse = !is_reverse) {
    for (unsigned i = 0; i < threads; ++i) {
      thread = is_reverse ? threads - 1 - i : i;
      ASSERT_FALSE(ended_[thread]) << "thread " << thread << " misses a barrier";
      swapcontext(&scheduler_, &contexts_[thread]);
    }
    const auto ended = std::count(ended_.begin(), ended_.end(), 1);
    ASSERT_TRUE(ended == 0 || ended == threads)
        << threads - ended << " threads wait for the others";
  }
}

/// The number of the running thread, as threadIdx.
struct ThreadIndex {
  struct X {
    operator unsigned() const { return Block::thread; }  // NOLINT(google-explicit-constructor)
  } x;
};

struct Launch {
  unsigned blocks, threads;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
inline std::vector<Launch> launches;  // of the test
inline cudaError_t next_status = cudaSuccess;
inline int errors_cleared = 0;

}  // namespace software_gpu

inline const software_gpu::ThreadIndex threadIdx;
inline uint3 blockIdx;
inline dim3 gridDim;

inline void __syncthreads() { software_gpu::Block::wait(); }

extern "C" inline cudaError_t cudaGetLastError() {
  ++software_gpu::errors_cleared;
  return cudaSuccess;
}

// The shared memory of a block, under the name that the kernel has for it.
namespace torchalgo::cuda {
namespace {
alignas(16) unsigned char shared_bytes[software_gpu::kSharedBytes];
}
}  // namespace torchalgo::cuda

// The one of the header would hand the kernel to the driver.
#define cudaLaunchKernelEx launch_in_software

template <typename... Parameters, typename... Arguments>
cudaError_t launch_in_software(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  using namespace software_gpu;
  launches.push_back(
      {config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes, config->stream});
  if (next_status != cudaSuccess) return std::exchange(next_status, cudaSuccess);
  EXPECT_LE(config->dynamicSmemBytes, kSharedBytes);
  gridDim = dim3(std::min(config->gridDim.x, kMostBlocks));
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    std::memset(torchalgo::cuda::shared_bytes, 0xff, kSharedBytes);
    Block::run(config->blockDim.x, [&] { kernel(arguments...); });
  }
  return cudaSuccess;
}
