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
  std::string name;  // "AMD EPYC ...": for records
  /// The build of the kernels that runs on this CPU, such as "avx2" (cpu_algo/kernels/isa.h), or
  /// the architecture of a GPU, such as "sm_90".
  std::string isa = "default";
  int threads = 1;                  // of at::parallel_for; workspaces depend on it
  std::int64_t l2_bytes = 1 << 20;  // of one core, or of the whole GPU
  /// The build of the kernels for bf16 that runs on this CPU: "amx", "avx512bf16" (AMD's), or empty
  /// if products in bf16 are not faster here than those in f32.
  std::string bf16_isa = {};
  std::string properties = {};  // of a GPU: as cuDNN's device property JSON
  std::string provenance = {};  // of a GPU: where `properties` come from: "this machine", ...
  int index = -1;               // of a GPU in this process; -1 if it is only described
  bool operator==(const Device&) const = default;
};

}  // namespace torchalgo
