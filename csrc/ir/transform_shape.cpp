// SPDX-License-Identifier: BSD-3-Clause
#include "ir/transform_shape.h"

namespace torchalgo {

std::optional<TransformProblem> transform_shape(const Value& value) {
  const std::vector<std::int64_t>& sizes = value.sizes;
  if (!value.dtype || sizes.size() < 3 || sizes.size() > 5) return std::nullopt;
  TransformProblem shape;
  shape.dtype = *value.dtype;
  shape.n = sizes[0];
  shape.c = sizes[1];
  shape.w = sizes.back();
  if (sizes.size() > 3) shape.h = sizes[sizes.size() - 2];
  if (sizes.size() > 4) shape.d = sizes[2];
  shape.is_3d = sizes.size() == 5;
  shape.from.clear();
  shape.to.clear();
  return shape;
}

}  // namespace torchalgo
