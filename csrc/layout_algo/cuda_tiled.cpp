// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "cuda/transform.h"
#include "layout_algo/rows.h"
#include "provider/cuda_device.h"

namespace torchalgo::layout {
namespace {

std::optional<cuda::ElementType> element_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kTf32:  // in memory a float
      return cuda::kFloat;
    case DType::kF16:
      return cuda::kHalf;
    case DType::kBf16:
      return cuda::kBfloat16;
    case DType::kF64:
      break;
  }
  return std::nullopt;
}

Offer offer_cuda_tiled(const Problem& problem, const CudaLibrary& library) {
  const LayoutPair pair = layout_pair(problem);
  if (!pair.refusal.empty()) return {{}, pair.refusal};
  if (is_blocked(pair.from) || is_blocked(pair.to)) return {{}, "needs nchw and nhwc"};
  const DType dtype = dtype_of(problem);
  if (!element_type(dtype)) {
    return {{}, fmt::format("needs f32, f16 or bf16, got {}", to_string(dtype))};
  }
  if (!library.transform) return {{}, library.absence};
  return {{{"layout.cuda_tiled", pair.from, pair.to}}, {}};
}

at::Tensor run_cuda_tiled(const Call& call, const CudaLibrary& library) {
  const auto& problem = std::get<TransformProblem>(call.problem);
  const cuda::ElementType type = *element_type(problem.dtype);
  const std::int64_t pixels = problem.d * problem.h * problem.w;
  const bool to_nhwc = call.primitive.dst == Layout::kNhwc;
  const int status =
      library.transform(call.src[0].const_data_ptr(), call.dst.mutable_data_ptr(), type, type,
                        problem.n, to_nhwc ? problem.c : pixels, to_nhwc ? pixels : problem.c,
                        call.dst.is_cuda() ? current_cuda_stream(call.dst.device()) : nullptr);
  TORCHALGO_CHECK(status == 0, "layout.cuda_tiled failed with CUDA's status {} ({})", status,
                  to_string(call.problem));
  return call.dst;
}

}  // namespace

Algorithm cuda_tiled(const std::function<const CudaLibrary&()>& library) {
  Algorithm row;
  row.name = "layout.cuda_tiled";
  row.runs_on_cpu = false;
  row.runs_on_cuda = true;
  row.offer = [library](const Problem& problem, const Device&) {
    return offer_cuda_tiled(problem, library());
  };
  row.run = [library](const Call& call) { return run_cuda_tiled(call, library()); };
  return row;
}

}  // namespace torchalgo::layout
