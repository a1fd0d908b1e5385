// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/padded_tensors.h"

#include <ATen/ops/zeros.h>

namespace torchalgo::cpu {

at::Tensor zero_floats(at::IntArrayRef sizes) { return at::zeros(sizes, at::kFloat); }

at::Tensor pad_bias(const at::Tensor& bias, std::int64_t count) {
  at::Tensor padded = zero_floats({count});
  if (bias.defined()) padded.narrow(0, 0, bias.numel()).copy_(bias);
  return padded;
}

Primitive with_workspace(Primitive primitive, std::int64_t bytes) {
  primitive.workspace_bytes = bytes;
  return primitive;
}

}  // namespace torchalgo::cpu
