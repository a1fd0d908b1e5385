// SPDX-License-Identifier: BSD-3-Clause
#include "cuda_algo/kernels.h"
#include "ir/transform_shape.h"

namespace torchalgo::cuda_algo {
namespace {

bool is_strided(Layout layout) { return layout == Layout::kNchw || layout == Layout::kNhwc; }

std::string refuse_unstrided(const Problem& problem) {
  if (std::string refusal = refuse_transform(problem); !refusal.empty()) return refusal;
  const auto& change = std::get<TransformProblem>(problem);
  return is_strided(change.from) && is_strided(change.to) ? "" : "needs nchw and nhwc";
}

Kernel prepare_transform(const Problem& problem, const Primitive& primitive,
                         const CudaLibrary& library) {
  const auto& change = std::get<TransformProblem>(problem);
  const std::int64_t pixels = change.d * change.h * change.w;
  const bool to_nhwc = primitive.dst == Layout::kNhwc;
  const std::int64_t rows = to_nhwc ? change.c : pixels, columns = to_nhwc ? pixels : change.c;
  return kernel_of(problem, primitive,
                   [=, type = *element_type_of(change.dtype), images = change.n,
                    transform = library.transform](const KernelArgs& args, void* stream) {
                     return transform(args.src[0].const_data_ptr(), args.dst.mutable_data_ptr(),
                                      type, type, images, rows, columns, stream);
                   });
}

}  // namespace

KernelFamily transform() {
  const auto layouts = [](const Problem& problem) -> std::vector<LayoutPair> {
    const auto& change = std::get<TransformProblem>(problem);
    return {{change.from, change.to}};
  };
  return {"layout.cuda_tiled", refuse_unstrided, layouts, prepare_transform};
}

}  // namespace torchalgo::cuda_algo
