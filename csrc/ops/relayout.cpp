// SPDX-License-Identifier: BSD-3-Clause
#include "ops/relayout.h"

#include <ATen/ops/constant_pad_nd.h>

#include "aten_algo/strided.h"

namespace torchalgo {

at::Tensor to_nchw(const at::Tensor& tensor, Layout layout, std::int64_t channels) {
  if (!is_blocked(layout)) return to_strided(tensor, Layout::kNchw);
  const auto sizes = tensor.sizes();
  const at::Tensor padded =
      tensor.permute({0, 1, 4, 2, 3}).reshape({sizes[0], sizes[1] * sizes[4], sizes[2], sizes[3]});
  return to_strided(padded.narrow(1, 0, channels), Layout::kNchw);
}

at::Tensor from_nchw(const at::Tensor& tensor, Layout layout) {
  if (!is_blocked(layout)) return to_strided(tensor, layout);
  const std::int64_t block = block_size(layout);
  const auto sizes = tensor.sizes();
  const std::int64_t blocks = (sizes[1] + block - 1) / block;
  const at::Tensor padded =
      at::constant_pad_nd(tensor.contiguous(), {0, 0, 0, 0, 0, blocks * block - sizes[1]});
  return padded.view({sizes[0], blocks, block, sizes[2], sizes[3]})
      .permute({0, 1, 3, 4, 2})
      .contiguous();
}

}  // namespace torchalgo
