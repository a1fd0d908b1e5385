// SPDX-License-Identifier: BSD-3-Clause
#include "ops/enable.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "ops/convolution.h"
#include "ops/torch_path.h"

namespace torchalgo {
namespace {

// aten::convolution reaches this op too, because its default kernel calls it. TorchScript's tracer
// records the call there. A kernel of aten::convolution itself would hide it from traces.
at::Tensor convolution_if_enabled(const at::Tensor& input, const at::Tensor& weight,
                                  const OptionalTensor& bias, at::IntArrayRef stride,
                                  at::IntArrayRef padding, at::IntArrayRef dilation,
                                  bool transposed, at::IntArrayRef output_padding,
                                  std::int64_t groups, bool benchmark, bool deterministic,
                                  bool cudnn_enabled, bool allow_tf32) {
  const c10::DeviceGuard on_device(input.device());
  if (!TorchPath::is_taken()) {
    auto result = run_chosen_forward(
        {input, weight, stride, padding, dilation, transposed, output_padding, groups}, bias, {});
    if (result) return *std::move(result);
  }
  return at::compositeexplicitautograd::_convolution(input, weight, bias, stride, padding, dilation,
                                                     transposed, output_padding, groups, benchmark,
                                                     deterministic, cudnn_enabled, allow_tf32);
}

Gradients backward_if_enabled(const at::Tensor& grad_output, const at::Tensor& input,
                              const at::Tensor& weight, at::OptionalIntArrayRef bias_sizes,
                              at::IntArrayRef stride, at::IntArrayRef padding,
                              at::IntArrayRef dilation, bool transposed,
                              at::IntArrayRef output_padding, std::int64_t groups,
                              std::array<bool, 3> mask) {
  const c10::DeviceGuard on_device(input.device());
  if (TorchPath::is_taken()) {
    return at::compositeexplicitautograd::convolution_backward(
        grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed,
        output_padding, groups, mask);
  }
  return run_backward(
      grad_output, {input, weight, stride, padding, dilation, transposed, output_padding, groups},
      bias_sizes, mask, {}, {});
}

// Torch has a CUDA kernel of convolution_backward, which equals its default one. It is replaced on
// purpose. So the dispatcher's warning is hidden from the user, but it remains available for other
// cases.
class QuietRegistration {
 public:
  QuietRegistration() { c10::WarningUtils::set_warnAlways(true); }
  ~QuietRegistration() { c10::WarningUtils::set_warnAlways(warn_always_); }
  QuietRegistration(const QuietRegistration&) = delete;
  QuietRegistration& operator=(const QuietRegistration&) = delete;

 private:
  struct Silence : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  bool warn_always_ = c10::WarningUtils::get_warnAlways();
  Silence silence_;
  c10::WarningUtils::WarningHandlerGuard guard_{&silence_};
};

class Registration {
 public:
  Registration() {
    const QuietRegistration quiet;
    for (torch::Library* library : {&cpu_, &cuda_}) {
      library->impl("_convolution", convolution_if_enabled);
      library->impl("convolution_backward", backward_if_enabled);
    }
  }

 private:
  torch::Library cpu_{torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__};
  torch::Library cuda_{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};
};

struct State {
  std::mutex mutex;  // guards `registration`
  std::unique_ptr<Registration> registration;
};

// Never destroyed: the dispatcher may be gone at exit.
State& state() {
  static State* instance = new State;
  return *instance;
}

}  // namespace

bool set_enabled(bool enabled) {
  const std::lock_guard lock(state().mutex);
  auto& registration = state().registration;
  const bool was_enabled = registration != nullptr;
  if (enabled != was_enabled) {
    registration = enabled ? std::make_unique<Registration>() : nullptr;
  }
  return was_enabled;
}

bool is_enabled() {
  const std::lock_guard lock(state().mutex);
  return state().registration != nullptr;
}

}  // namespace torchalgo
