// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <string_view>

#include "ops/conv_ops.h"

// Under torch.autocast a convolution runs in its lower precision, as torch's own do. The choice is
// then read for that compute type: "f16:...;f32:..." serves both.
namespace torchalgo {
namespace {

using SymInts = c10::SymIntArrayRef;

template <at::DeviceType kDevice, c10::DispatchKey kKey>
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, SymInts stride, SymInts padding,
                       SymInts dilation, bool transposed, SymInts output_padding,
                       c10::SymInt groups, std::string_view forward, std::string_view backward_data,
                       std::string_view backward_filter) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [type](const auto& tensor) {
    return at::autocast::cached_cast(type, tensor, kDevice);
  };
  return call_convolution(cast(input), cast(weight), cast(bias), stride, padding, dilation,
                          transposed, output_padding, groups, forward, backward_data,
                          backward_filter);
}

TORCH_LIBRARY_IMPL(torchalgo, AutocastCPU, m) {
  m.impl("convolution", convolution<at::kCPU, c10::DispatchKey::AutocastCPU>);
}

TORCH_LIBRARY_IMPL(torchalgo, AutocastCUDA, m) {
  m.impl("convolution", convolution<at::kCUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace
}  // namespace torchalgo
