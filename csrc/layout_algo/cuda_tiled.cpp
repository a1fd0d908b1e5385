// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "cuda/interface.h"
#include "ir/transform_shape.h"
#include "layout_algo/cuda_tiled.h"
#include "provider/cuda_device.h"
#include "provider/kernel.h"

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
  if (std::string refusal = refuse_transform(problem); !refusal.empty()) return {{}, refusal};
  const auto& change = std::get<TransformProblem>(problem);
  if (is_blocked(change.from) || is_blocked(change.to) || is_typed(change.from) ||
      is_typed(change.to))
    return {{}, "needs nchw and nhwc"};
  const DType dtype = dtype_of(problem);
  if (!element_type(dtype)) {
    return {{}, fmt::format("needs f32, f16 or bf16, got {}", to_string(dtype))};
  }
  if (!library.transform) return {{}, library.absence};
  return {{{"layout.cuda_tiled", change.from, change.to}}, {}};
}

Kernel prepare_cuda_tiled(const Problem& problem, const Primitive& primitive,
                          const CudaLibrary& library) {
  const auto& change = std::get<TransformProblem>(problem);
  const cuda::ElementType type = *element_type(change.dtype);
  const std::int64_t pixels = change.d * change.h * change.w;
  const bool to_nhwc = primitive.dst == Layout::kNhwc;
  const std::int64_t rows = to_nhwc ? change.c : pixels, columns = to_nhwc ? pixels : change.c;
  return {
      .problem = problem,
      .primitive = primitive,
      .run = [=, images = change.n, transform = library.transform](const KernelArgs& args) {
        const at::Tensor& dst = args.dst;
        const c10::DeviceGuard on_device(dst.device());  // a kernel starts on the current GPU
        const int status =
            transform(args.src[0].const_data_ptr(), dst.mutable_data_ptr(), type, type, images,
                      rows, columns, dst.is_cuda() ? current_cuda_stream(dst.device()) : nullptr);
        TORCHALGO_CHECK(status == 0, "TA5004 layout.cuda_tiled failed with CUDA's status {} ({})",
                        status, to_string(problem));
        return dst;
      }};
}

}  // namespace

Algorithm cuda_tiled_of(const std::function<const CudaLibrary&()>& library) {
  Algorithm algorithm;
  algorithm.name = "layout.cuda_tiled";
  algorithm.rounding = 1;
  algorithm.runs_on_cpu = false;
  algorithm.runs_on_cuda = true;
  algorithm.offer = [library](const Problem& problem, const Device&) {
    return offer_cuda_tiled(problem, library());
  };
  algorithm.prepare = [library](const Problem& problem, const Primitive& primitive, const Device&) {
    return prepare_cuda_tiled(problem, primitive, library());
  };
  return algorithm;
}

Algorithm cuda_tiled(const std::string& /*isa*/) { return cuda_tiled_of(cuda_library); }

}  // namespace torchalgo::layout
