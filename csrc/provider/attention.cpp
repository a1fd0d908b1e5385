// SPDX-License-Identifier: BSD-3-Clause
#include "provider/attention.h"

#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>

#include <cmath>

namespace torchalgo {
namespace {

at::Tensor attend_by_softmax(const AttentionProblem& problem, std::span<const at::Tensor> src) {
  const double own_scale = 1 / std::sqrt(static_cast<double>(src[0].size(-1)));
  const double scale = problem.scale.value_or(own_scale);
  at::Tensor scores = at::matmul(src[0], src[1].transpose(-2, -1));
  if (scale != 1) scores = at::mul(scores, scale);
  if (src.size() > 3) scores = at::add(scores, src[3]);
  return at::matmul(at::softmax(scores, -1), src[2]);
}

at::Tensor attend_linearly(const AttentionProblem& problem, std::span<const at::Tensor> src) {
  const at::Tensor keys = at::relu(src[1]).transpose(-2, -1);
  const at::Tensor values = at::constant_pad_nd(src[2], {0, 1}, 1);
  const at::Tensor sums = at::matmul(at::relu(src[0]), at::matmul(keys, values));
  const std::int64_t width = src[2].size(-1);
  const at::Tensor divisors = at::add(sums.narrow(-1, width, 1), problem.epsilon);
  return at::div(sums.narrow(-1, 0, width), divisors);
}

}  // namespace

at::Tensor attend(const AttentionProblem& problem, std::span<const at::Tensor> src) {
  return problem.kind == AttentionKind::kLinear ? attend_linearly(problem, src)
                                                : attend_by_softmax(problem, src);
}

}  // namespace torchalgo
