// SPDX-License-Identifier: BSD-3-Clause
#include "ir/work.h"

#include <functional>
#include <numeric>
#include <vector>

#include "ir/arithmetic.h"

namespace torchalgo {
namespace {

double element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kTf32:
      return 4;
    case DType::kF16:
    case DType::kBf16:
      return 2;
  }
  return 0;
}

double elements_in(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>());
}

}  // namespace

double least_bytes(const Problem& problem, DType stored) {
  const std::vector<std::vector<std::int64_t>> inputs = input_sizes(problem);
  double elements = elements_read(problem) + elements_in(result_sizes(problem));
  for (std::size_t i = 1; i < inputs.size(); ++i) elements += elements_in(inputs[i]);
  const auto* conv = std::get_if<ConvProblem>(&problem);
  const bool makes_weights = conv != nullptr && conv->direction == Direction::kBackwardFilter;
  for (const Problem& layer : layers_of(problem)) {
    const std::vector<std::int64_t> weights = weight_sizes(layer);
    if (!weights.empty() && !makes_weights) elements += elements_in(weights);
  }
  return elements * element_bytes(stored);
}

double least_bytes(const Problem& problem) { return least_bytes(problem, dtype_of(problem)); }

Work direct_work(const Problem& problem) {
  return {least_flop_count(problem), least_bytes(problem)};
}

}  // namespace torchalgo
