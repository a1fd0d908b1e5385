// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

namespace torchalgo {

/// Returns how many threads of this process can run at once: no more than the processors of its
/// affinity, and no more than quota_threads(root).
[[nodiscard]] int usable_threads(const std::filesystem::path& root = "/");

/// Returns the CPU quota of this process's control groups (v1 or v2) in processors, rounded up.
/// Returns INT_MAX if there is none, or if it cannot be read. `root` is the root of the file
/// system, for tests.
[[nodiscard]] int quota_threads(const std::filesystem::path& root = "/");

}  // namespace torchalgo
