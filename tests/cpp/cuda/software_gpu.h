// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

// Runs CUDA kernels on the CPU: a source file of CUDA is compiled as C++ behind this header. A
// block first runs its threads as plain calls, one after the other. At the first __syncthreads() it
// starts again, with one context per thread. Contexts take turns, and each runs until its barrier
// or its end. So stores before the first barrier happen twice.

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__
#undef __grid_constant__
#define __grid_constant__

namespace software_gpu {

inline constexpr std::size_t kSharedBytes = 48 << 10;  // what every GPU gives unasked
inline constexpr std::size_t kStackBytes = 64 << 10;

/// The error of a thread that reached a barrier in a plain call.
struct BarrierError {};

/// One block of threads.
class Block {
 public:
  /// Runs `kernel` in every thread.
  /// @throws std::logic_error  if some threads wait at a barrier that others miss.
  static void run(unsigned threads, const std::function<void()>& kernel);
  static void wait();

  static inline bool has_barriers = true;  // false: to see that the tests need them
  static inline unsigned thread = 0;

 private:
  struct Context {
    jmp_buf buffer;
  };
  static void run_contexts(unsigned threads);
  static void enter() {
    (*kernel_)();
    ended_[thread] = true;
    _longjmp(scheduler_, 1);
  }

  static inline const std::function<void()>* kernel_ = nullptr;
  static inline bool takes_turns_ = false;
  static inline jmp_buf scheduler_;
  static inline std::vector<Context> contexts_;
  static inline std::vector<char> started_, ended_;
};

inline void Block::wait() {
  if (!has_barriers) return;
  if (!takes_turns_) throw BarrierError();
  if (_setjmp(contexts_[thread].buffer) == 0) _longjmp(scheduler_, 1);
}

inline void Block::run(unsigned threads, const std::function<void()>& kernel) {
  kernel_ = &kernel;
  takes_turns_ = false;
  try {
    for (thread = 0; thread < threads; ++thread) kernel();
  } catch (const BarrierError&) {
    takes_turns_ = true;
    run_contexts(threads);
  }
}

inline void Block::run_contexts(unsigned threads) {
  static std::vector<char> stacks;
  stacks.resize(threads * kStackBytes);
  contexts_.resize(threads);
  started_.assign(threads, 0);
  ended_.assign(threads, 0);
  for (bool is_reverse = false; !ended_[0]; is_reverse = !is_reverse) {
    for (unsigned i = 0; i < threads; ++i) {
      thread = is_reverse ? threads - 1 - i : i;
      if (ended_[thread]) throw std::logic_error("a thread misses a barrier of others");
      if (_setjmp(scheduler_) != 0) continue;  // it waits or has ended
      if (started_[thread]) _longjmp(contexts_[thread].buffer, 1);
      started_[thread] = true;
      ucontext_t first;
      getcontext(&first);
      first.uc_stack.ss_sp = stacks.data() + thread * kStackBytes;
      first.uc_stack.ss_size = kStackBytes;
      first.uc_link = nullptr;
      makecontext(&first, &Block::enter, 0);
      setcontext(&first);
    }
    const auto ended = std::count(ended_.begin(), ended_.end(), 1);
    if (ended != 0 && ended != threads) throw std::logic_error("threads wait for others");
  }
}

/// The number of the running thread, as threadIdx.
struct ThreadIndex {
  struct X {
    operator unsigned() const { return Block::thread; }  // NOLINT(google-explicit-constructor)
  } x;
};

}  // namespace software_gpu

inline const software_gpu::ThreadIndex threadIdx;
inline uint3 blockIdx;
inline dim3 blockDim, gridDim;

inline void __syncthreads() { software_gpu::Block::wait(); }
// All threads of the block call it equally often.
inline float __shfl_xor_sync(unsigned, float value, int distance) {
  static float values[1024];
  const unsigned thread = software_gpu::Block::thread;
  values[thread] = value;
  __syncthreads();
  const float found = values[thread ^ static_cast<unsigned>(distance)];
  __syncthreads();
  return found;
}
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }

// The shared memory of a block, under the name that the kernels have for it.
namespace torchalgo::cuda {
alignas(16) inline unsigned char shared_bytes[software_gpu::kSharedBytes];
}

namespace software_gpu {

/// Runs all blocks of a launch.
inline void run_grid(dim3 blocks, unsigned threads, const std::function<void()>& kernel) {
  gridDim = blocks;
  blockDim = dim3(threads);
  for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x) {
    std::memset(torchalgo::cuda::shared_bytes, 0xff, kSharedBytes);
    Block::run(threads, kernel);
  }
}

}  // namespace software_gpu
