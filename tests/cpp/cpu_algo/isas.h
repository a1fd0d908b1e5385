// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "cpu_algo/kernels/instruction_sets.h"
#include "provider/cpu_device.h"

namespace torchalgo {

/// This machine's processor as if it multiplied in bf16, for which algorithms offer nhwc.bf16 too.
/// It is for offers only: a kernel that is prepared for it needs AMX. Prepare for cpu_device().
inline Device device_with_bf16() {
  Device device = cpu_device();
  device.bf16_isa = "amx";
  return device;
}

/// The kernels' builds that run on this machine: its own, and those below it in the table. Under a
/// sanitizer the default one is left out if others run: it consists of the same templates, and the
/// tests take hours.
inline std::vector<std::string> isas() {
  std::vector<std::string> all;
  for (const kernels::InstructionSet& set : kernels::kInstructionSets) {
    if (all.empty() && set.name != cpu_device().isa) continue;
    all.insert(all.begin(), std::string(set.name));
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (all.size() > 1) all.erase(all.begin());
#endif
  return all;
}

}  // namespace torchalgo
