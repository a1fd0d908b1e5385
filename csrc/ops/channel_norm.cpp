// SPDX-License-Identifier: BSD-3-Clause
// torchalgo::channel_norm: a norm over one dimension, which a model computes in several ops.
// csrc/simplify/passes.h puts it into graphs.

#include "provider/channel_norm.h"

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "base/error.h"

namespace torchalgo {
namespace {

at::Tensor run_channel_norm(const at::Tensor& src, const std::string& kind, const at::Tensor& scale,
                            const at::Tensor& shift, double eps, std::int64_t dim) {
  const std::optional<LayerNormKind> found = parse_layer_norm_kind(kind);
  TORCHALGO_CHECK(
      found, "TA4303 torchalgo::channel_norm: expected layer, rms or variance, got the kind \"{}\"",
      kind);
  const at::Tensor result = channel_norm(*found, src, scale, shift, eps, dim);
  // A view of the model may need the strides that the model's ops make.
  return result.strides() == src.strides() ? result : at::empty_like(src).copy_(result);
}

// PyTorch's ops inside choose the type under autocast, and have derivatives.
TORCH_LIBRARY_FRAGMENT(torchalgo, m) {
  m.def(
      "channel_norm(Tensor src, str kind, Tensor scale, Tensor shift, float eps, int dim) -> "
      "Tensor",
      run_channel_norm);
}

}  // namespace
}  // namespace torchalgo
