// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "aten_algo/tensor_shape.h"
#include "ir/view.h"
#include "view_algo/rows.h"

namespace torchalgo::view {
namespace {

// A blocked part ends with the tensor or with a block: its pad lanes must be zero.
bool is_whole_blocks(const SliceProblem& slice, std::int64_t block) {
  const std::int64_t end = slice.begin + slice.k;
  return slice.begin % block == 0 && (end % block == 0 || end == slice.c);
}

Offer offer_slice(const Problem& problem, const Device& device) {
  const auto* slice = std::get_if<SliceProblem>(&problem);
  if (slice == nullptr) return {{}, "needs a slice"};
  if (slice->n != 1) return {{}, fmt::format("needs n = 1, got {}", slice->n)};
  Offer offer;
  offer.primitives.push_back({std::string(kViewSlice), Layout::kNchw, Layout::kNchw});
  const bool is_ours = device.kind == DeviceKind::kCpu && slice->dtype == DType::kF32;
  if (is_ours && is_whole_blocks(*slice, block_size(Layout::kNChw16c)))
    offer.primitives.push_back({std::string(kViewSlice), Layout::kNChw16c, Layout::kNChw16c});
  return offer;
}

at::Tensor run_slice(const Call& call) {
  const auto& slice = std::get<SliceProblem>(call.problem);
  const at::Tensor& src = call.src[0];
  const TensorShape dst = shape_in(result_sizes(call.problem), call.primitive.dst);
  return src.as_strided(dst.sizes, dst.strides,
                        src.storage_offset() + slice.begin * slice.h * slice.w);
}

}  // namespace

Algorithm slice() {
  Algorithm row;
  row.name = kViewSlice;
  row.runs_on_cuda = true;
  row.offer = offer_slice;
  row.run = run_slice;
  row.makes_dst = true;
  return row;
}

}  // namespace torchalgo::view
