// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/oracle.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isnan.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

namespace torchalgo {
namespace {

// A clamp behind a batch norm decides by a value, and so does the gradient of a maximum. A
// primitive that rounds its inputs to bf16 decides otherwise in some places, which is no fault of
// it. So their images have values of bf16 from the start, unless an offset leaves too few digits.
void round_images(const Problem& problem, double offset, Sample& sample) {
  const auto* norm = std::get_if<BatchNormProblem>(&problem);
  const auto* pool = std::get_if<PoolGradientProblem>(&problem);
  const bool decides = std::holds_alternative<ActivationGradientProblem>(problem) ||
                       (norm != nullptr && norm->activation) ||
                       (pool != nullptr && pool->pool.kind == PoolKind::kMax);
  if (!decides || offset > sample_offsets(DType::kBf16).back()) return;
  for (std::size_t i = 0; i < 2; ++i)  // the gradient of the result, and x
    sample.src[i] = sample.src[i].to(at::kBFloat16).to(sample.src[i].scalar_type());
}

Oracle oracle_of_seed(const Problem& problem, std::uint64_t seed, at::Device device,
                      double offset) {
  Oracle oracle = {.sample = make_sample(problem, seed, device, offset), .offset = offset};
  round_images(problem, offset, oracle.sample);
  oracle.reference = reference_result(problem, oracle.sample);
  oracle.norm = oracle.reference.norm().item<double>();
  if (offset == 0) return oracle;
  if (subtracts_mean(problem)) oracle.condition = std::max(1.0, offset);
  const at::ScalarType type = dtype_of(problem) == DType::kF64 ? at::kDouble : at::kFloat;
  const auto found = parts_of(problem, offset, reference_result(problem, oracle.sample, type));
  const auto exact = parts_of(problem, offset, oracle.reference);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    oracle.of_torch.push_back(difference_of(found[i], exact[i]));
  }
  return oracle;
}

}  // namespace

Difference difference_of(const at::Tensor& result, const at::Tensor& reference, double rounding) {
  const at::Tensor difference = result.to(reference.device(), at::kDouble).sub(reference);
  const double norm = reference.norm().item<double>();
  const double scale = norm > 0 ? norm : 1;
  const double mean = scale / std::sqrt(static_cast<double>(difference.numel()));
  const double l2 = difference.norm().item<double>() / scale;
  const double worst = difference.abs_().sub_(reference.abs(), rounding).max().item<double>();
  return {l2, std::max(worst, 0.0) / mean};
}

std::vector<at::Tensor> parts_of(const Problem& problem, double offset, const at::Tensor& result) {
  const auto* norm = std::get_if<BatchNormProblem>(&problem);
  if (offset == 0 || norm == nullptr || norm->step != BatchNormStep::kMoments) return {result};
  return {result.select(0, 0), result.select(0, 1)};
}

Oracle make_oracle(const Problem& problem, std::uint64_t seed, at::Device device, double offset) {
  constexpr std::int64_t kFewElements = 32;
  constexpr int kSamples = 8;
  constexpr std::uint64_t kStride = 4;  // the other oracles use the seeds in between
  Oracle oracle = oracle_of_seed(problem, seed, device, offset);
  if (oracle.reference.numel() > kFewElements) return oracle;
  for (int turn = 1; turn < kSamples; ++turn) {
    Oracle other = oracle_of_seed(problem, seed + kStride * turn, device, offset);
    if (other.norm > oracle.norm) oracle = std::move(other);
  }
  return oracle;
}

std::vector<NanOracle> make_nan_oracles(const Problem& problem, const Sample& sample) {
  NanOracle inputs = {sample, {}};
  for (std::size_t i = 0; i < sample.src.size(); ++i) {
    inputs.sample.src[i] = with_nans(sample.src[i], i);
  }
  inputs.is_nan = at::isnan(reference_result(problem, inputs.sample, at::kFloat)).cpu();
  // PyTorch's gradient of an ELU is a number at some NaNs of its input.
  const bool may_spread =
      is_convolution(problem) || std::holds_alternative<ActivationGradientProblem>(problem);
  if (!may_spread) inputs.is_number = inputs.is_nan.logical_not();
  if (std::holds_alternative<ResizeProblem>(problem)) {
    // PyTorch computes the positions of an f32 resize in f32. A position that is rounded to the
    // other side of an integer reads another element, so only what is a NaN or a number in both
    // types has to stay so.
    const at::Tensor in_f64 =
        at::isnan(reference_result(problem, inputs.sample, at::kDouble)).cpu();
    inputs.is_nan.logical_and_(in_f64);
    inputs.is_number.logical_and_(in_f64.logical_not());
  }
  std::vector<NanOracle> oracles = {std::move(inputs)};
  if (sample.residual.defined()) {
    NanOracle residual = {sample, {}};
    residual.sample.residual = with_nans(sample.residual, 0);
    residual.is_nan = at::isnan(residual.sample.residual).cpu();
    oracles.push_back(std::move(residual));
  }
  return oracles;
}

}  // namespace torchalgo
