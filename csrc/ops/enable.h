// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torchalgo {

/// Sets whether convolutions of unmodified code on CPU and CUDA, forward and backward, follow
/// conv_settings(). If `enabled` is true, kernels are registered for aten::_convolution, which
/// every convolution calls, and for aten::convolution_backward. They run PyTorch's own path if no
/// setting applies. If it is false, the kernels are removed, and torch is as before. Do not call it
/// while another thread runs a convolution. Returns the old value.
bool set_enabled(bool enabled);
[[nodiscard]] bool is_enabled();

}  // namespace torchalgo
