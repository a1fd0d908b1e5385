// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/device.h"

namespace torchalgo {

/// Returns this CPU with torch's current number of threads. The ISA obeys ATEN_CPU_CAPABILITY.
[[nodiscard]] Device cpu_device();

}  // namespace torchalgo
