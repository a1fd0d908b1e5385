// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ir/layout.h"
#include "provider/tensor_shape.h"

namespace torchalgo {

/// Converts a tensor in `layout` with `channels` logical channels to strided nchw. Returns the
/// tensor itself if it is in strided nchw already.
[[nodiscard]] at::Tensor to_nchw(const at::Tensor& tensor, Layout layout, std::int64_t channels);

/// Converts a strided tensor to `layout`, with zeros in pad lanes. Returns the tensor itself if it
/// is in `layout` already.
[[nodiscard]] at::Tensor from_nchw(const at::Tensor& tensor, Layout layout);

}  // namespace torchalgo
