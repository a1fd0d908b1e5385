// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/threads.h"

namespace torchalgo::cpu {

/// Returns threads that divide a call into at most `threads` ranges. The caller and workers of a
/// pool that the whole process shares compute them, at most `at_once` at the same time if this is
/// the only call.
///
/// A call of `run` is divided like one of at::parallel_for. The caller computes ranges itself, and
/// workers that are awake help. The call ends when each range is computed. So it waits for a worker
/// only if that has begun a range, and never for a thread that the system does not run. The bits of
/// a result do not depend on who computes a range, or on `at_once`, but may depend on `threads`.
///
/// - Several threads may call at once and share the workers. A call inside a range runs on the
///   thread that makes it.
/// - If a range throws, the others are still computed. Then `run` throws the first exception.
/// - A worker without work polls for $TORCHALGO_POLL_US microseconds, by default 50, and then
///   sleeps. It sleeps at once if it has lost its core meanwhile.
/// - Workers have the caller's rounding and denormal mode, and block all signals.
/// - A child process after fork() starts workers of its own. Workers do not delay the end of the
///   process: nobody joins them.
[[nodiscard]] Threads pool_threads(int threads, int at_once);

}  // namespace torchalgo::cpu
