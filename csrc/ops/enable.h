// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace torchalgo {

/// Whether convolutions of unmodified code on CPU and CUDA, forward and backward, obey
/// conv_settings(). On: kernels of aten::_convolution, which every convolution calls, and of
/// aten::convolution_backward are registered, which run PyTorch's own path wherever nothing is
/// asked for. Off: they are removed again, and torch is as it was. Not to be changed while another
/// thread runs a convolution. Returns the old value.
bool set_enabled(bool enabled);
[[nodiscard]] bool is_enabled();

}  // namespace torchalgo
