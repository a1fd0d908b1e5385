// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/descriptor.h"

#include <fmt/format.h>

#include <array>

namespace torchalgo::cudnn {

std::string describe(const Api& api, Status status) {
  const char* name = api.get_error_string ? api.get_error_string(status) : nullptr;
  std::array<char, 1024> reason{};
  if (api.get_last_error_string) api.get_last_error_string(reason.data(), reason.size());
  reason.back() = '\0';
  std::string text = fmt::format("{} ({})", name == nullptr ? "unknown status" : name, status);
  if (reason[0] != '\0') text += fmt::format(": {}", reason.data());
  return text;
}

void check(const Api& api, Status status, std::string_view what) {
  if (status == kSuccess) return;
  throw StatusError(status, fmt::format("TA5102 cuDNN: {}: {}", what, describe(api, status)));
}

OwnedDescriptor::OwnedDescriptor(const Api& api, DescriptorType type) : api_(&api) {
  check(api, api.create_descriptor(type, &raw_),
        fmt::format("create a descriptor of type {}", static_cast<int>(type)));
}

void OwnedDescriptor::set_raw(AttributeName name, AttributeType type, std::int64_t count,
                              const void* values) {
  const Status status = api_->set_attribute(raw_, name, type, count, values);
  if (status == kSuccess) return;
  check(*api_, status, fmt::format("set attribute {}", static_cast<int>(name)));
}

std::int64_t OwnedDescriptor::read_raw(AttributeName name, AttributeType type,
                                       std::int64_t capacity, void* values) const {
  std::int64_t count = 0;
  const Status status = api_->get_attribute(raw_, name, type, capacity, &count, values);
  if (status == kSuccess) return count;
  check(*api_, status, fmt::format("get attribute {}", static_cast<int>(name)));
  return 0;
}

Status OwnedDescriptor::try_finalize() { return api_->finalize(raw_); }

void OwnedDescriptor::finalize(std::string_view what) {
  const Status status = try_finalize();
  if (status == kSuccess) return;
  check(*api_, status, fmt::format("finalize {}", what));
}

}  // namespace torchalgo::cudnn
