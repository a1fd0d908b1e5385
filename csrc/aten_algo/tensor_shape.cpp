// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/tensor_shape.h"

#include "aten_algo/strided.h"
#include "base/error.h"

namespace torchalgo {

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
