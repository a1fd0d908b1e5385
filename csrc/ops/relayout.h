// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ir/layout.h"
#include "provider/tensor_shape.h"

namespace torchalgo {

/// `tensor`, which lies in `layout` and has `channels` logical channels, as strided nchw; itself if
/// it is that already.
[[nodiscard]] at::Tensor to_nchw(const at::Tensor& tensor, Layout layout, std::int64_t channels);

/// The inverse: a strided tensor brought into `layout`, pad lanes zero; itself if it lies so.
[[nodiscard]] at::Tensor from_nchw(const at::Tensor& tensor, Layout layout);

}  // namespace torchalgo
