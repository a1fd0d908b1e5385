// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

namespace torchalgo {

/// The machine that a row is asked about; an argument, so that tests can name another one.
struct Device {
  std::string name;             // "AMD EPYC ...": for records
  std::string isa = "default";  // the kernels' build that runs here: "avx512", "avx2", "default"
  int threads = 1;              // of at::parallel_for; workspaces depend on it
  std::int64_t l2_bytes = 1 << 20;  // per core
  bool operator==(const Device&) const = default;
};

/// This CPU, with torch's present number of threads. The ISA obeys ATEN_CPU_CAPABILITY.
[[nodiscard]] Device cpu_device();

}  // namespace torchalgo
