// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/threads.h"

namespace torchalgo {

/// Returns the threads for the kernels that the calling thread runs: those of OpenMP, as
/// at::parallel_for does, or the pool of cpu::pool_threads(). The pool runs kernels for a while
/// after a caller had to wait for a thread that did not run. It always runs them if
/// at::get_num_threads() is larger than usable_threads().
///
/// OpenMP ends a region when each thread of the team has run, also one whose core another program
/// uses. The pool waits for nobody who has not begun, so it is far faster on a busy machine. But
/// threads of OpenMP poll for milliseconds after a region, and the pool has to share the cores with
/// them. So in a process that also runs operators of PyTorch, a quiet machine is faster with
/// OpenMP. Results have the same bits in each case.
[[nodiscard]] cpu::Threads call_threads();

/// While the object lives, the kernels that the calling thread runs have the threads of OpenMP.
class OpenMpGuard {
 public:
  OpenMpGuard();
  ~OpenMpGuard();
  OpenMpGuard(const OpenMpGuard&) = delete;
  OpenMpGuard& operator=(const OpenMpGuard&) = delete;

 private:
  bool before_;
};

}  // namespace torchalgo
