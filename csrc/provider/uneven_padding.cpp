// SPDX-License-Identifier: BSD-3-Clause
#include "provider/uneven_padding.h"

#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>

namespace torchalgo {

at::DimVector even_padding(const ConvProblem& conv) {
  return {conv.pad_h + std::min<std::int64_t>(conv.extra_h, 0),
          conv.pad_w + std::min<std::int64_t>(conv.extra_w, 0)};
}

at::Tensor with_uneven_padding(const ConvProblem& conv, const at::Tensor& src) {
  if (is_padded_evenly(conv)) return src;
  const auto before = [](std::int64_t extra) { return std::max<std::int64_t>(-extra, 0); };
  const auto after = [](std::int64_t extra) { return std::max<std::int64_t>(extra, 0); };
  return at::constant_pad_nd(
      src, {before(conv.extra_w), after(conv.extra_w), before(conv.extra_h), after(conv.extra_h)});
}

}  // namespace torchalgo
