// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/fake_cudnn.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <type_traits>

#include "cudnn_algo/fake_state.h"

namespace torchalgo::cudnn::fake {
namespace {

const char* name_of(Status status) {
  switch (status) {
    case kSuccess:
      return "CUDNN_STATUS_SUCCESS";
    case kBadParam:
      return "CUDNN_STATUS_BAD_PARAM";
    case kBadParamNullPointer:
      return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case kNotSupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case kNotSupportedArchMismatch:
      return "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH";
    case kNotSupportedRuntimePrerequisiteMissing:
      return "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING";
    case kInternalError:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    case kInternalErrorHostAllocationFailed:
      return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case kExecutionFailed:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_UNKNOWN_STATUS";
  }
}

std::shared_ptr<const Api> make_api(const std::shared_ptr<detail::State>& state) {
  auto api = std::make_shared<Api>();
  api->get_version = [state] { return state->options.version; };
  api->get_error_string = name_of;
  api->get_last_error_string = [state](char* message, std::size_t size) {
    const std::lock_guard lock(state->mutex);
    std::snprintf(message, size, "%s", state->errors[std::this_thread::get_id()].c_str());
    state->errors.erase(std::this_thread::get_id());  // reading clears it, as in cuDNN
  };
  api->create_handle = [state](Handle* handle) -> Status {
    const std::lock_guard lock(state->mutex);
    *handle = reinterpret_cast<Handle>(0x100 * (state->handles.size() + 1));
    detail::LiveThreads::add_this();
    state->handles[*handle] = std::this_thread::get_id();
    return kSuccess;
  };
  api->set_stream = [state](Handle handle, Stream stream) -> Status {
    const std::lock_guard lock(state->mutex);
    if (!state->accepts(handle)) return kBadParamNullPointer;
    state->streams[handle] = stream;
    return kSuccess;
  };
  detail::add_graph_functions(state, *api);
  if (state->options.has_legacy) detail::add_legacy_functions(state, *api);
  return api;
}

using Before = std::function<std::optional<Status>(const CallRecord&)>;

template <typename... Arguments>
CallRecord record_of(const char* function, const Arguments&... arguments) {
  CallRecord record{function, std::nullopt, std::nullopt};
  const auto note = [&](const auto& argument) {
    using T = std::decay_t<decltype(argument)>;
    if constexpr (std::is_same_v<T, AttributeName>) record.attribute = argument;
    if constexpr (std::is_same_v<T, DescriptorType>) record.created = argument;
  };
  (note(arguments), ...);
  return record;
}

template <typename... Arguments>
void wrap(std::function<Status(Arguments...)>& function, const char* name, const Before& before,
          bool destroys = false) {
  if (!function) return;
  function = [inner = function, name, before, destroys](Arguments... arguments) -> Status {
    const auto answer = before(record_of(name, arguments...));
    if (!answer) return inner(arguments...);
    if (destroys) static_cast<void>(inner(arguments...));
    return *answer;
  };
}

}  // namespace

FakeCudnn::FakeCudnn(const Options& options) : state_(std::make_shared<detail::State>()) {
  state_->options = options;
  api_ = make_api(state_);
}

Runtime FakeCudnn::runtime() const {
  Runtime runtime;
  runtime.device = [] { return 0; };
  runtime.stream = []() -> Stream { return reinterpret_cast<Stream>(0x7); };
  runtime.is_capturing = [state = state_] {
    const std::lock_guard lock(state->mutex);
    return state->is_capturing;
  };
  runtime.on_device = [](int) { return std::shared_ptr<void>(); };
  return runtime;
}

void FakeCudnn::set_capturing(bool is_capturing) {
  const std::lock_guard lock(state_->mutex);
  state_->is_capturing = is_capturing;
}

Stats FakeCudnn::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

std::string device_properties(int sm) {
  return fmt::format(R"({{"deviceVer":{},"deviceName":"a fake of sm_{}"}})", sm * 10, sm);
}

std::shared_ptr<const Api> intercept(const std::shared_ptr<const Api>& inner, Before before) {
  auto api = std::make_shared<Api>(*inner);
  wrap(api->create_handle, "create_handle", before);
  wrap(api->set_stream, "set_stream", before);
  wrap(api->create_descriptor, "create_descriptor", before);
  wrap(api->destroy_descriptor, "destroy_descriptor", before, true);
  wrap(api->finalize, "finalize", before);
  wrap(api->set_attribute, "set_attribute", before);
  wrap(api->get_attribute, "get_attribute", before);
  wrap(api->execute, "execute", before);
  Api::Legacy& legacy = api->legacy;
  wrap(legacy.create_tensor, "legacy.create_tensor", before);
  wrap(legacy.create_filter, "legacy.create_filter", before);
  wrap(legacy.create_convolution, "legacy.create_convolution", before);
  wrap(legacy.destroy_tensor, "legacy.destroy_tensor", before, true);
  wrap(legacy.destroy_filter, "legacy.destroy_filter", before, true);
  wrap(legacy.destroy_convolution, "legacy.destroy_convolution", before, true);
  wrap(legacy.set_tensor, "legacy.set_tensor", before);
  wrap(legacy.set_filter, "legacy.set_filter", before);
  wrap(legacy.set_convolution, "legacy.set_convolution", before);
  wrap(legacy.set_groups, "legacy.set_groups", before);
  wrap(legacy.set_math_type, "legacy.set_math_type", before);
  wrap(legacy.get_forward_workspace, "legacy.get_forward_workspace", before);
  wrap(legacy.get_backward_data_workspace, "legacy.get_backward_data_workspace", before);
  wrap(legacy.get_backward_filter_workspace, "legacy.get_backward_filter_workspace", before);
  wrap(legacy.run_forward, "legacy.run_forward", before);
  wrap(legacy.run_backward_data, "legacy.run_backward_data", before);
  wrap(legacy.run_backward_filter, "legacy.run_backward_filter", before);
  return api;
}

Fault::Fault(const std::shared_ptr<const Api>& inner, std::int64_t at, Status status)
    : failed_(std::make_shared<std::optional<CallRecord>>()) {
  auto count = std::make_shared<std::atomic<std::int64_t>>(0);
  api_ = intercept(
      inner,
      [count, at, status, failed = failed_](const CallRecord& record) -> std::optional<Status> {
        if (count->fetch_add(1) != at) return std::nullopt;
        *failed = record;
        return status;
      });
}

}  // namespace torchalgo::cudnn::fake
