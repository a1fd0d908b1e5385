// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/threads.h"

namespace torchalgo {

/// The threads that a kernel uses.
enum class ThreadUse {
  /// The kernel uses the threads of OpenMP, as at::parallel_for does. It uses the pool for a while
  /// after the caller had to wait for a thread that did not run. It always uses the pool if
  /// at::get_num_threads() is larger than usable_threads().
  kAdaptive,
  kOpenMp,
  kPool,  // see cpu::pool_threads()
};

/// Returns the threads for the kernels that the calling thread runs.
///
/// OpenMP ends a region when each thread of the team has run, also one whose core another program
/// uses. The pool waits for nobody who has not begun, so it is far faster on a busy machine. But
/// threads of OpenMP poll for milliseconds after a region, and the pool has to share the cores with
/// them. So in a process that also runs operators of PyTorch, a quiet machine is faster with
/// OpenMP. Results have the same bits in each case.
[[nodiscard]] cpu::Threads call_threads();

/// Sets the threads of the kernels that the calling thread runs while the object lives.
class ThreadUseGuard {
 public:
  explicit ThreadUseGuard(ThreadUse use);
  ~ThreadUseGuard();
  ThreadUseGuard(const ThreadUseGuard&) = delete;
  ThreadUseGuard& operator=(const ThreadUseGuard&) = delete;

 private:
  ThreadUse before_;
};

}  // namespace torchalgo
