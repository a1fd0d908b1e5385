// SPDX-License-Identifier: BSD-3-Clause
#include "cuda_algo/kernels.h"

#include <c10/core/DeviceGuard.h>

#include <utility>

#include "base/error.h"
#include "provider/cuda_device.h"

namespace torchalgo::cuda_algo {

std::optional<cuda::ElementType> element_type_of(DType dtype) {
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

cuda::Activation activation_of(const std::optional<PostOp>& op) {
  if (!op) return {};
  return {static_cast<int>(op->kind) - static_cast<int>(PostOp::kRelu),
          {static_cast<float>(op->numbers[0]), static_cast<float>(op->numbers[1])}};
}

const void* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

Kernel kernel_of(const Problem& problem, const Primitive& primitive,
                 std::function<int(const KernelArgs&, void*)> launch) {
  return {
      .problem = problem,
      .primitive = primitive,
      .run =
          [problem, name = primitive.name, launch = std::move(launch)](const KernelArgs& args) {
            const at::Tensor& dst = args.dst;
            const c10::DeviceGuard on_device(dst.device());  // a kernel starts on the current GPU
            void* const stream = dst.is_cuda() ? current_cuda_stream(dst.device()) : nullptr;
            const int status = launch(args, stream);
            TORCHALGO_CHECK(status == 0, "TA5004 {} failed with CUDA's status {} ({})", name,
                            status, to_string(problem));
            return dst;
          },
      .packing = to_string(primitive)};
}

Kernel with_scale_and_shift(Kernel kernel) {
  kernel.pack = [](const Weights& weights) -> Packed {
    const auto& [scale, shift] = weights[0];
    return {{scale.contiguous(), shift.contiguous()}};
  };
  kernel.packed_bytes = [] { return 0; };  // the model's own
  return kernel;
}

}  // namespace torchalgo::cuda_algo
