// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "ir/view.h"
#include "provider/algorithm.h"
#include "provider/tensor_shape.h"

namespace torchalgo::view {
namespace {

Offer offer_relabel(const Problem& problem, const Device&) {
  const auto* transform = std::get_if<TransformProblem>(&problem);
  if (transform == nullptr) return {{}, "needs a change of layout"};
  const auto from = parse_layout(transform->from), to = parse_layout(transform->to);
  if (!from || !to || *from == *to) {
    return {{}, fmt::format("needs two layouts, got {} and {}", transform->from, transform->to)};
  }
  if (transform->is_3d && (is_blocked(*from) || is_blocked(*to))) {
    return {{}, "needs a 2-D tensor: blocked layouts have no depth"};
  }
  const std::int64_t spatial = transform->d * transform->h * transform->w;
  if (!lies_alike(transform->n, transform->c, spatial, *from, *to)) {
    return {{},
            fmt::format("needs elements in the same order in {} and {}", transform->from,
                        transform->to)};
  }
  return {{{std::string(kViewRelabel), *from, *to}}, {}};
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

// Another name for the same memory, where both layouts order it alike: any type, 4-D or 5-D.
Algorithm relabel() {
  return {.name = kViewRelabel,
          .runs_on_cuda = true,
          .offer = offer_relabel,
          .prepare = prepare_relabel};
}

}  // namespace torchalgo::view
