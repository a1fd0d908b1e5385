// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include "cuda_algo/kernels.h"

namespace torchalgo::cuda_algo {
namespace {

std::string refuse_slice(const Problem& problem) {
  return std::holds_alternative<SliceProblem>(problem) ? "" : "runs slices only";
}

std::string refuse_concat(const Problem& problem) {
  const auto* const concat = std::get_if<ConcatProblem>(&problem);
  if (concat == nullptr) return "runs concatenations only";
  if (concat->groups > 1) return "does not shuffle channels";
  if (concat->c.size() > cuda::Rows::kMostParts) {
    return fmt::format("takes up to {} tensors, got {}", cuda::Rows::kMostParts, concat->c.size());
  }
  return {};
}

// The rows of every call, whose addresses each call adds. The copy of a row begins with element
// `first` of the row of the source.
struct RowsPlan {
  cuda::Rows rows;
  std::int64_t first = 0;
};

RowsPlan rows_plan_of(const Problem& problem, Layout layout) {
  const std::vector<std::int64_t> sizes = result_sizes(problem);
  const std::int64_t pixels = sizes[2] * sizes[3];
  const bool is_nhwc = layout == Layout::kNhwc;
  const std::int64_t per_channel = is_nhwc ? 1 : pixels;  // elements of a row
  const auto elements = [&](std::int64_t channels) {
    return static_cast<int>(channels * per_channel);
  };
  RowsPlan plan;
  plan.rows.element_bytes = *element_type_of(dtype_of(problem)) == cuda::kFloat ? 4 : 2;
  plan.rows.rows = static_cast<int>(is_nhwc ? sizes[0] * pixels : sizes[0]);
  if (const auto* const slice = std::get_if<SliceProblem>(&problem)) {
    plan.first = slice->begin * per_channel;
    plan.rows.part[plan.rows.parts++] = {nullptr, elements(slice->k), elements(slice->c)};
  } else {
    for (const std::int64_t c : std::get<ConcatProblem>(problem).c)
      plan.rows.part[plan.rows.parts++] = {nullptr, elements(c), elements(c)};
  }
  return plan;
}

Kernel prepare_rows(const Problem& problem, const Primitive& primitive,
                    const CudaLibrary& library) {
  return kernel_of(problem, primitive,
                   [plan = rows_plan_of(problem, primitive.src), run = library.rows](
                       const KernelArgs& tensors, void* stream) {
                     cuda::Rows rows = plan.rows;
                     for (std::size_t i = 0; i < tensors.src.size(); ++i) {
                       const auto* const data =
                           static_cast<const char*>(tensors.src[i].const_data_ptr());
                       rows.part[i].src = data + plan.first * rows.element_bytes;
                     }
                     return run(&rows, tensors.dst.mutable_data_ptr(), stream);
                   });
}

}  // namespace

KernelFamily concat() {
  return {"cuda.concat", refuse_concat, [](const Problem&) { return kBothLayouts; }, prepare_rows};
}

KernelFamily slice() {
  return {"cuda.slice", refuse_slice, [](const Problem&) { return kBothLayouts; }, prepare_rows};
}

}  // namespace torchalgo::cuda_algo
