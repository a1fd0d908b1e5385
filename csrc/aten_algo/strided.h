// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "ir/layout.h"
#include "provider/algorithm.h"

namespace torchalgo {

/// The one stride vector that a dense tensor of `sizes` has in nchw (row-major, any rank) or nhwc
/// (channels innermost, rank 4 or 5).
[[nodiscard]] at::DimVector dense_strides(at::IntArrayRef sizes, Layout layout);

/// `tensor` in exactly dense_strides: itself if it has them, a view if its memory already lies that
/// way, else a copy.
///
/// Where c = 1 or h = w = 1 a tensor is contiguous and channels_last at once, and ATen guesses its
/// memory format from the strides: they must follow the plan, or an op answers in a format that
/// nobody planned.
[[nodiscard]] at::Tensor to_strided(const at::Tensor& tensor, Layout layout);

/// The offer of a row that keeps the layout: nchw to nchw and nhwc to nhwc.
[[nodiscard]] Offer offer_strided(std::string_view name);

}  // namespace torchalgo
