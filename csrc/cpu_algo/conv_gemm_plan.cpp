// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv_gemm_plan.h"

#include <ATen/ops/empty.h>

#include "cpu_algo/with_tensors.h"

namespace torchalgo::cpu {

Work strassen_work(const Problem& problem) {
  Work work = direct_work(problem);
  for (const Problem& layer : layers_of(problem)) {
    const auto* conv = std::get_if<ConvProblem>(&layer);
    if (conv != nullptr && can_strassen(*conv, Layout::kNChw16c, Layout::kNChw16c))
      work.flops -= direct_work(layer).flops / 8;
  }
  return work;
}

at::Tensor pack_conv_gemm(const kernels::ConvGemm& gemm, const ConvProblem& conv,
                          const at::Tensor& weights) {
  const at::Tensor plain = weights.to(at::kFloat).contiguous();
  at::Tensor packed = at::empty({packed_floats(gemm)}, at::kFloat);
  pack_conv_gemm(gemm, conv, plain.const_data_ptr<float>(), packed.mutable_data_ptr<float>(),
                 torch_threads());
  return packed;
}

}  // namespace torchalgo::cpu
