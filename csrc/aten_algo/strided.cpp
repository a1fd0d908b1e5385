// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/strided.h"

#include <string>
#include <utility>

namespace torchalgo {

at::Tensor to_strided(const at::Tensor& tensor, Layout layout) {
  const at::IntArrayRef sizes = tensor.sizes();
  const at::DimVector strides = dense_strides(sizes, layout);
  if (tensor.strides() == at::IntArrayRef(strides)) return tensor;
  const auto format = layout == Layout::kNchw ? at::MemoryFormat::Contiguous
                      : sizes.size() == 5     ? at::MemoryFormat::ChannelsLast3d
                                              : at::MemoryFormat::ChannelsLast;
  const at::Tensor dense = tensor.contiguous(format);
  if (dense.strides() == at::IntArrayRef(strides)) return dense;
  return dense.as_strided(sizes, strides);
}

Offer offer_strided(std::string_view name) {
  return {{{std::string(name), Layout::kNchw, Layout::kNchw, 0},
           {std::string(name), Layout::kNhwc, Layout::kNhwc, 0}},
          {}};
}

Offer offer_with_bf16(std::string_view name, const Problem& problem, const Device& device) {
  Offer offer = offer_strided(name);
  if (!device.bf16_isa.empty() && dtype_of(problem) == DType::kF32)
    offer.primitives.push_back({std::string(name), Layout::kNhwcBf16, Layout::kNhwcBf16, 0});
  return offer;
}

Kernel strided_kernel(const Problem& problem, const Primitive& primitive,
                      std::function<at::Tensor(const KernelArgs&)> run) {
  Kernel kernel = {.problem = problem,
                   .primitive = primitive,
                   .run = [run = std::move(run), dst = primitive.dst](
                              const KernelArgs& args) { return to_strided(run(args), dst); },
                   .packing = to_string(primitive),
                   .makes_dst = true};
  if (!weight_sizes(problem).empty()) {
    kernel.pack = [](const Weights& weights) -> Packed { return weights; };
    kernel.packed_bytes = [] { return 0; };  // the model's own
  }
  return kernel;
}

}  // namespace torchalgo
