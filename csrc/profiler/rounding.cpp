// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <limits>

#include "profiler/check.h"

namespace torchalgo {
namespace {

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::numeric_limits<double>::epsilon();
    case DType::kF32:
      return std::numeric_limits<float>::epsilon();
    case DType::kTf32:
    case DType::kF16:
      return std::ldexp(1.0, -10);
    case DType::kBf16:
      return std::ldexp(1.0, -7);
  }
  return 1;
}

bool is_activation_exact(const Epilogue& epilogue) {
  return std::all_of(epilogue.begin(), epilogue.end(),
                     [](PostOp op) { return op == PostOp::kRelu || op == PostOp::kRelu6; });
}

bool is_exact(const Problem& problem) {
  if (std::holds_alternative<TransformProblem>(problem)) return true;
  if (std::holds_alternative<ConcatProblem>(problem)) return true;
  if (std::holds_alternative<SliceProblem>(problem)) return true;
  if (std::holds_alternative<ShuffleProblem>(problem)) return true;
  if (const auto* pool = std::get_if<PoolProblem>(&problem)) return pool->kind == PoolKind::kMax;
  if (const auto* resize = std::get_if<ResizeProblem>(&problem)) {
    return resize->kind == ResizeKind::kNearest;
  }
  const auto* eltwise = std::get_if<EltwiseProblem>(&problem);
  return eltwise != nullptr && eltwise->kind == EltwiseKind::kActivation &&
         is_activation_exact(eltwise->epilogue);
}

// How many numbers are added up to one element of the result.
double term_count(const Problem& problem) {
  if (const auto* conv = std::get_if<ConvProblem>(&problem)) {
    double terms = 1;
    const bool has_weights = conv->direction != Direction::kBackwardFilter;
    const auto sizes = has_weights ? weight_sizes(problem) : conv_dst_sizes(*conv);
    for (std::size_t i = 2; i < sizes.size(); ++i) terms *= static_cast<double>(sizes[i]);
    switch (conv->direction) {
      case Direction::kForward:
        return terms * static_cast<double>(conv->c / conv->groups);
      case Direction::kBackwardData:
        return terms * static_cast<double>(conv->k / conv->groups);
      case Direction::kBackwardFilter:
        return terms * static_cast<double>(conv->n);
    }
  }
  if (const auto* linear = std::get_if<LinearProblem>(&problem)) {
    return static_cast<double>(linear->c);
  }
  if (const auto* pool = std::get_if<PoolProblem>(&problem)) {
    if (pool->kind == PoolKind::kAverage) return static_cast<double>(pool->r * pool->s);
    return static_cast<double>((pool->h / pool->p + 1) * (pool->w / pool->q + 1));
  }
  return 4;  // bilinear; fewer elsewhere
}

}  // namespace

double rounding_error(const Problem& problem, double factor) {
  if (is_exact(problem)) return 0;
  // Each of n additions rounds a partial sum, which grows with the square root of the terms'
  // number: together 0.2 sqrt(n) of epsilon beside the sum itself (Higham 2002, section 4.2, for
  // random terms); 4 is for an activation and a residual.
  // The errors of a chain's convolutions add up.
  double roundings = 0;
  for (const Problem& layer : layers_of(problem))
    roundings += 4 + 0.5 * std::sqrt(term_count(layer));
  return factor * epsilon_of(dtype_of(problem)) * roundings;
}

}  // namespace torchalgo
