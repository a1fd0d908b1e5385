// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

namespace torchalgo {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

/// The processor or GPU that an algorithm is to run on. It is an argument, so that tests can
/// describe another one.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::string name;             // "AMD EPYC ...": for records
  std::string isa = "default";  // the kernels' build that runs here: "avx512", "avx2", "default";
                                // of a GPU: "sm_90"
  int threads = 1;              // of at::parallel_for; workspaces depend on it
  std::int64_t l2_bytes = 1 << 20;  // of one core, or of the whole GPU
  std::string properties;           // of a GPU: as cuDNN's device property JSON
  std::string provenance;           // of a GPU: where `properties` come from: "this machine", ...
  int index = -1;                   // of a GPU in this process; -1 if it is only described
  bool operator==(const Device&) const = default;
};

/// Returns this CPU with torch's current number of threads. The ISA obeys ATEN_CPU_CAPABILITY.
[[nodiscard]] Device cpu_device();

}  // namespace torchalgo
