// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "ir/algorithm.h"
#include "ir/view.h"
#include "provider/kernel.h"
#include "provider/tensor_shape.h"

namespace torchalgo::view {
namespace {

// Returns true if the part starts at a block, and ends with the tensor or with a block, so that its
// pad lanes are zero.
bool is_whole_blocks(const SliceProblem& slice, std::int64_t block) {
  const std::int64_t end = slice.begin + slice.k;
  return slice.begin % block == 0 && (end % block == 0 || end == slice.c);
}

Offer offer_all(const Problem& problem, const Device& device) {
  const auto* slice = std::get_if<SliceProblem>(&problem);
  if (slice == nullptr) return {{}, "needs a slice"};
  Offer offer;
  offer.primitives.push_back({std::string(kViewSlice), Layout::kNchw, Layout::kNchw});
  const bool is_ours = device.kind == DeviceKind::kCpu && slice->dtype == DType::kF32;
  if (is_ours && is_whole_blocks(*slice, block_size(Layout::kNChw16c)))
    offer.primitives.push_back({std::string(kViewSlice), Layout::kNChw16c, Layout::kNChw16c});
  return offer;
}

Offer offer(const Problem& problem, const Device& device) {
  const auto* slice = std::get_if<SliceProblem>(&problem);
  if (slice != nullptr && slice->n != 1) return {{}, fmt::format("needs n = 1, got {}", slice->n)};
  return offer_all(problem, device);
}

Kernel prepare_slice(const Problem& problem, const Primitive& primitive, const Device&) {
  const auto& slice = std::get<SliceProblem>(problem);
  return {.problem = problem,
          .primitive = primitive,
          .run =
              [dst = shape_in(result_sizes(problem), primitive.dst),
               begin = slice.begin / block_size(primitive.src)](const KernelArgs& args) {
                const at::Tensor part =
                    args.src[0].narrow(1, begin, dst.sizes[1]).contiguous();  // a copy if n > 1
                return part.as_strided(dst.sizes, dst.strides, part.storage_offset());
              },
          .makes_dst = true};
}

}  // namespace

// Makes the algorithm that returns the memory of some channels of a tensor with n = 1: in nchw, and
// in f32 if the part fills whole blocks. A plan for one image copies them in a larger batch.
Algorithm slice() {
  return {.name = kViewSlice,
          .runs_on_cuda = true,
          .offer = offer,
          .offer_all = offer_all,
          .prepare = prepare_slice};
}

}  // namespace torchalgo::view
