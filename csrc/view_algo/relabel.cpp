// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "ir/algorithm.h"
#include "ir/transform_shape.h"
#include "ir/view.h"
#include "provider/kernel.h"
#include "provider/tensor_shape.h"

namespace torchalgo::view {
namespace {

Offer offer_relabel(const Problem& problem, const Device&) {
  if (std::string refusal = refuse_transform(problem); !refusal.empty()) return {{}, refusal};
  const auto& change = std::get<TransformProblem>(problem);
  const std::int64_t spatial = change.d * change.h * change.w;
  if (!lies_alike(change.n, change.c, spatial, change.from, change.to)) {
    return {{},
            fmt::format("needs elements in the same order in {} and {}", to_string(change.from),
                        to_string(change.to))};
  }
  return {{{std::string(kViewRelabel), change.from, change.to}}, {}};
}

Kernel prepare_relabel(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run =
              [dst = shape_in(result_sizes(problem), primitive.dst)](const KernelArgs& args) {
                const at::Tensor& src = args.src[0];
                return src.as_strided(dst.sizes, dst.strides, src.storage_offset());
              },
          .makes_dst = true};
}

}  // namespace

// Makes the algorithm that returns the same memory with another layout. Both layouts must have the
// same order of elements: any type, 4-D or 5-D.
Algorithm relabel() {
  return {.name = kViewRelabel,
          .runs_on_cuda = true,
          .offer = offer_relabel,
          .prepare = prepare_relabel};
}

}  // namespace torchalgo::view
