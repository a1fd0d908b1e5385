// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include "cudnn_algo/descriptor.h"

namespace torchalgo::cudnn {

/// Finalized device properties, or why cuDNN does not take them.
struct DeviceProperties {
  std::optional<OwnedDescriptor> descriptor;
  std::string refusal;
};

/// From the JSON that cuDNN itself writes for a live device (Device::properties). A newer cuDNN may
/// want keys that an older one did not write. Takes a few microseconds.
[[nodiscard]] DeviceProperties make_device_properties(const Api& api, const std::string& json);

}  // namespace torchalgo::cudnn
