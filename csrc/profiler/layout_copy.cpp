// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_strided.h>

#include "base/error.h"
#include "profiler/check.h"

namespace torchalgo {

at::Tensor to_layout(const at::Tensor& nchw, Layout layout) {
  if (layout == Layout::kNchw) return nchw.contiguous();
  if (is_typed(layout)) return to_layout(nchw, untyped(layout)).to(at::kBFloat16);
  if (layout == Layout::kNhwc) {
    TORCHALGO_ASSERT(nchw.dim() == 4 || nchw.dim() == 5);
    const auto format =
        nchw.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
    // clone() always sets the strides, while contiguous() may return a tensor with a size of 1
    // unchanged.
    return nchw.clone(format);
  }
  TORCHALGO_ASSERT(nchw.dim() == 4);
  const std::int64_t block = block_size(layout);
  const std::int64_t blocks = (nchw.size(1) + block - 1) / block;
  const at::Tensor padded =
      at::constant_pad_nd(nchw, {0, 0, 0, 0, 0, blocks * block - nchw.size(1)});
  return padded.reshape({nchw.size(0), blocks, block, nchw.size(2), nchw.size(3)})
      .permute({0, 1, 3, 4, 2})
      .contiguous();
}

at::Tensor from_layout(const at::Tensor& tensor, Layout layout,
                       const std::vector<std::int64_t>& sizes) {
  if (!is_blocked(layout)) return tensor.contiguous();
  return tensor.permute({0, 1, 4, 2, 3})
      .reshape({sizes[0], tensor.size(1) * tensor.size(4), sizes[2], sizes[3]})
      .narrow(1, 0, sizes[1])
      .contiguous();
}

}  // namespace torchalgo
