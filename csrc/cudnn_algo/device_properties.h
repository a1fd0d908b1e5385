// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include "cudnn_algo/descriptor.h"

namespace torchalgo::cudnn {

/// Finalized device properties, or the reason why cuDNN does not accept them.
struct DeviceProperties {
  std::optional<OwnedDescriptor> descriptor;
  std::string refusal;
};

/// Makes device properties from the JSON that cuDNN writes for a live device (Device::properties).
/// A newer cuDNN may need keys that an older one did not write. The call takes a few microseconds.
[[nodiscard]] DeviceProperties make_device_properties(const Api& api, const std::string& json);

/// Returns the JSON that cuDNN writes for GPU `index` of this process. Device::properties is
/// torchalgo's own text of the same properties; benchmarks/gpu_check.py compares the two.
/// @throws StatusError  if there is no such GPU.
[[nodiscard]] std::string properties_of_gpu(const Api& api, int index);

}  // namespace torchalgo::cudnn
