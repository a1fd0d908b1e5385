// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/strided.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace torchalgo {

at::DimVector dense_strides(at::IntArrayRef sizes, Layout layout) {
  TORCHALGO_ASSERT(!is_blocked(layout));
  const bool channels_last = layout == Layout::kNhwc;
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

at::Tensor to_strided(const at::Tensor& tensor, Layout layout) {
  const at::IntArrayRef sizes = tensor.sizes();
  const at::DimVector strides = dense_strides(sizes, layout);
  if (tensor.strides() == at::IntArrayRef(strides)) return tensor;
  const auto format = layout == Layout::kNchw ? at::MemoryFormat::Contiguous
                      : sizes.size() == 5     ? at::MemoryFormat::ChannelsLast3d
                                              : at::MemoryFormat::ChannelsLast;
  const at::Tensor dense = tensor.contiguous(format);
  if (dense.strides() == at::IntArrayRef(strides)) return dense;
  return dense.as_strided(sizes, strides);
}

Offer offer_strided(std::string_view name) {
  return {{{std::string(name), Layout::kNchw, Layout::kNchw, 0},
           {std::string(name), Layout::kNhwc, Layout::kNhwc, 0}},
          {}};
}

}  // namespace torchalgo
