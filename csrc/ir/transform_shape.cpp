// SPDX-License-Identifier: BSD-3-Clause
#include "ir/transform_shape.h"

#include "ir/arithmetic.h"

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
  return shape;
}

std::string refuse_transform(const Problem& problem) {
  const auto* change = std::get_if<TransformProblem>(&problem);
  if (change == nullptr) return "needs a change of layout";
  if (change->from == change->to) return "needs two layouts that differ";
  if (change->is_3d && (is_blocked(change->from) || is_blocked(change->to)))
    return "needs a 2-D tensor: blocked layouts have no depth";
  return {};
}

std::int64_t bytes_of(const Value& value, Layout layout) {
  if (!value.dtype || value.sizes.empty()) return 0;
  const std::int64_t channels = value.sizes.size() > 1 ? value.sizes[1] : 1;
  std::int64_t positions = 1;
  for (std::size_t i = 2; i < value.sizes.size(); ++i) positions *= value.sizes[i];
  return element_count(layout, value.sizes[0], channels, positions) *
         element_bytes(element_type(layout, *value.dtype));
}

}  // namespace torchalgo
