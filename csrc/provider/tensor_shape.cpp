// SPDX-License-Identifier: BSD-3-Clause
#include "provider/tensor_shape.h"

#include <algorithm>

#include "base/error.h"

namespace torchalgo {

at::DimVector dense_strides(at::IntArrayRef sizes, Layout layout) {
  TORCHALGO_ASSERT(!is_blocked(layout));
  const bool channels_last = untyped(layout) == Layout::kNhwc;
  TORCHALGO_ASSERT(!channels_last || sizes.size() == 4 || sizes.size() == 5);
  at::DimVector strides(sizes.size());
  std::int64_t stride = 1;
  if (channels_last) {
    strides[1] = 1;
    stride = std::max<std::int64_t>(sizes[1], 1);
  }
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    if (channels_last && dim == 1) continue;
    strides[dim] = stride;
    stride *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

TensorShape shape_in(const std::vector<std::int64_t>& sizes, Layout layout) {
  if (!is_blocked(layout)) {
    return {at::DimVector(sizes.begin(), sizes.end()), dense_strides(sizes, layout)};
  }
  TORCHALGO_ASSERT(sizes.size() == 4);
  const std::int64_t block = block_size(layout);
  const at::DimVector blocked = {sizes[0], (sizes[1] + block - 1) / block, sizes[2], sizes[3],
                                 block};
  return {blocked, dense_strides(blocked, Layout::kNchw)};
}

}  // namespace torchalgo
