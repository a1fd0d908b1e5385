// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "cpu_algo/kernels/instruction_sets.h"
#include "provider/cpu_device.h"

namespace torchalgo {
namespace {

std::string read_cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  }
  return "unknown CPU";
}

std::int64_t read_l2_bytes() {
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : Device().l2_bytes;
}

std::string read_isa() {
  using kernels::InstructionSet;
  return std::string(
      kernels::instruction_set(at::get_cpu_capability(), &InstructionSet::capability).name);
}

// Linux gives a process the tiles of AMX when it asks for them. Each CPU that has them has
// AVX512_BF16. Its product of pairs has twice the rate of f32 on processors of AMD (571 and 286
// GFLOP/s of a core of Zen 5), and half the rate of f32 on those of Intel.
std::string read_bf16_isa() {
  if (read_isa() != "avx512") return "";
  if (at::cpu::init_amx()) return "amx";
#if defined(__x86_64__)
  if (__builtin_cpu_is("amd") && __builtin_cpu_supports("avx512bf16")) return "avx512bf16";
#endif
  return "";
}

}  // namespace

Device cpu_device() {
  // Only the number of threads may change while the process runs.
  static const Device kFixed = {.name = read_cpu_name(),
                                .isa = read_isa(),
                                .l2_bytes = read_l2_bytes(),
                                .bf16_isa = read_bf16_isa()};
  Device device = kFixed;
  device.threads = at::get_num_threads();
  return device;
}

}  // namespace torchalgo
