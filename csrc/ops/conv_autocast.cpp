// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/conv_ops.h"

// Under torch.autocast a convolution runs in its lower precision, as torch's own do. The choice is
// then read for that compute type: "f16:...;f32:..." serves both.
namespace torchalgo {
namespace {

template <at::DeviceType kDevice, c10::DispatchKey kKey>
at::Tensor convolution(const SymConvArgs& args, const OptionalTensor& bias,
                       const ChoiceTexts& choices) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
  const auto cast = [type](const auto& tensor) {
    return at::autocast::cached_cast(type, tensor, kDevice);
  };
  return call_convolution(args.of(cast(args.input), cast(args.weight)), cast(bias), choices);
}

TORCH_LIBRARY_IMPL(torchalgo, AutocastCPU, m) {
  m.impl("convolution",
         ConvKernels<SymConvArgs>::forward<&convolution<at::kCPU, c10::DispatchKey::AutocastCPU>>);
}

TORCH_LIBRARY_IMPL(torchalgo, AutocastCUDA, m) {
  m.impl(
      "convolution",
      ConvKernels<SymConvArgs>::forward<&convolution<at::kCUDA, c10::DispatchKey::AutocastCUDA>>);
}

}  // namespace
}  // namespace torchalgo
