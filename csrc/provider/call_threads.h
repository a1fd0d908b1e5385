// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/threads.h"

namespace torchalgo {

/// The threads that a kernel uses.
enum class ThreadUse {
  /// Those of OpenMP, which at::parallel_for and most operators of PyTorch use. After a region was
  /// held up by a thread that did not run, those of the pool for a while. Those of the pool also if
  /// fewer threads can run at once than at::get_num_threads() says, see usable_threads().
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
