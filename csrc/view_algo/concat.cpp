// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>

#include "ir/algorithm.h"
#include "ir/view.h"
#include "provider/kernel.h"
#include "provider/memory.h"
#include "provider/tensor_shape.h"

namespace torchalgo::view {
namespace {

// The layout of views of concatenations. In this layout a part of the channels is contiguous, and
// only our algorithms compute tensors, which can write into given memory. In nchw only the first is
// true.
constexpr Layout kLayout = Layout::kNChw16c;

Offer offer_all(const Problem& problem, const Device&) {
  const auto* concat = std::get_if<ConcatProblem>(&problem);
  if (concat == nullptr) return {{}, "needs a concatenation"};
  if (concat->dtype != DType::kF32) {
    return {{}, fmt::format("needs f32, got {}", to_string(concat->dtype))};
  }
  if (concat->groups > 1) return {{}, "needs channels that stay as they are"};
  const bool starts_on_blocks =
      std::all_of(concat->c.begin(), concat->c.end() - 1,
                  [](std::int64_t c) { return c % block_size(kLayout) == 0; });
  if (!starts_on_blocks) {
    return {{},
            fmt::format("needs multiples of {} channels in all inputs but the last",
                        block_size(kLayout))};
  }
  return {{{std::string(kViewConcat), kLayout, kLayout}}, {}};
}

Offer offer(const Problem& problem, const Device& device) {
  const auto* concat = std::get_if<ConcatProblem>(&problem);
  if (concat != nullptr && concat->n != 1)
    return {{}, fmt::format("needs n = 1, got {}", concat->n)};
  return offer_all(problem, device);
}

bool lie_side_by_side(std::span<const at::Tensor> parts) {
  std::int64_t next = parts[0].storage_offset();
  for (const at::Tensor& part : parts) {
    if (!part.is_alias_of(parts[0]) || part.storage_offset() != next) return false;
    next += part.numel();
  }
  return true;
}

at::Tensor run_concat(const Problem& problem, const TensorShape& shape, const KernelArgs& args) {
  const at::Tensor& first = args.src[0];
  if (shape.sizes[0] == 1 && lie_side_by_side(args.src)) {
    return first.as_strided(shape.sizes, shape.strides, first.storage_offset());
  }
  const at::Tensor dst = empty_result(problem, kLayout, first.device());
  std::int64_t block = 0;
  for (const at::Tensor& part : args.src) {
    dst.narrow(1, block, part.size(1)).copy_(part);
    block += part.size(1);
  }
  return dst;
}

Kernel prepare_concat(const Problem& problem, const Primitive& primitive, const Device&) {
  return {.problem = problem,
          .primitive = primitive,
          .run = [problem, shape = shape_in(result_sizes(problem), kLayout)](
                     const KernelArgs& args) { return run_concat(problem, shape, args); },
          .makes_dst = true};
}

}  // namespace

// Makes the algorithm that returns the memory that the inputs share: f32, n = 1, nChw16c, each
// input on whole blocks. Under a plan the inputs are always adjacent. If they are not, they are
// copied: an input may have been computed by a fallback, on another machine, in another size or in
// a larger batch.
Algorithm concat() {
  return {.name = kViewConcat, .offer = offer, .offer_all = offer_all, .prepare = prepare_concat};
}

}  // namespace torchalgo::view
