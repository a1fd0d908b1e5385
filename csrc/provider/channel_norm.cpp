// SPDX-License-Identifier: BSD-3-Clause
#include "provider/channel_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/var.h>

namespace torchalgo {

at::Tensor channel_norm(LayerNormKind kind, const at::Tensor& src, const at::Tensor& scale,
                        const at::Tensor& shift, double epsilon, std::int64_t dim) {
  const at::Tensor last = src.movedim(dim, -1);
  if (kind == LayerNormKind::kLayer) {
    return at::layer_norm(last, last.size(-1), scale, shift, epsilon).movedim(-1, dim);
  }
  // The squares of f16 numbers may be larger than the largest one.
  const at::Tensor wide = src.scalar_type() == at::kDouble ? last : last.to(at::kFloat);
  const at::Tensor spread = kind == LayerNormKind::kRms
                                ? wide.square().mean(-1, /*keepdim=*/true)
                                : at::var(wide, -1, /*unbiased=*/true, /*keepdim=*/true);
  const at::Tensor result = wide * spread.add(epsilon).rsqrt() * scale + shift;
  return result.to(src.scalar_type()).movedim(-1, dim);
}

}  // namespace torchalgo
