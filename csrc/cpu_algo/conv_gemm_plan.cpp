// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv_gemm_plan.h"

#include <ATen/ops/empty.h>

#include "cpu_algo/with_tensors.h"

namespace torchalgo::cpu {

Work strassen_work(const Problem& problem, const Primitive& primitive) {
  Work work = direct_work(problem, primitive);
  const auto save = [&](const ConvProblem& conv) {
    if (can_strassen(conv, Layout::kNChw16c, Layout::kNChw16c))
      work.flops -= direct_work(conv, primitive).flops / 8;
  };
  if (const auto* conv = std::get_if<ConvProblem>(&problem)) save(*conv);
  if (const auto* chain = std::get_if<ConvChainProblem>(&problem))
    for (const ConvProblem& conv : chain->convs) save(conv);
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
