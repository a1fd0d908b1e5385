// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/device_properties.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/error_code.h"

namespace torchalgo::cudnn {

DeviceProperties make_device_properties(const Api& api, const std::string& json) {
  if (json.empty()) {
    return {std::nullopt, "the device is described without cuDNN's properties"};
  }
  try {
    OwnedDescriptor descriptor(api, DescriptorType::kDeviceProperties);
    descriptor.set(AttributeName::kDevicePropertiesJson, std::span<const char>(json));
    descriptor.finalize("device properties");
    return {std::move(descriptor), {}};
  } catch (const StatusError& error) {
    return {std::nullopt,
            fmt::format("cuDNN {} does not take the device's properties, perhaps for a key that "
                        "they lack: {}",
                        version_text(api), without_code(error.what()))};
  }
}

std::string properties_of_gpu(const Api& api, int index) {
  OwnedDescriptor descriptor(api, DescriptorType::kDeviceProperties);
  descriptor.set_raw(AttributeName::kDevicePropertiesDeviceId, AttributeType::kInt32, 1, &index);
  descriptor.finalize("device properties");
  constexpr std::int64_t kMostBytes = 1 << 16;
  const auto text = descriptor.read_list<char>(AttributeName::kDevicePropertiesJson, kMostBytes);
  return {text.begin(), std::ranges::find(text, '\0')};
}

}  // namespace torchalgo::cudnn
