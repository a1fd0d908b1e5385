// SPDX-License-Identifier: BSD-3-Clause
#include "ir/work.h"

#include <functional>
#include <numeric>
#include <vector>

#include "ir/arithmetic.h"

namespace torchalgo {
namespace {

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
  return elements * static_cast<double>(element_bytes(stored));
}

double least_bytes(const Problem& problem) { return least_bytes(problem, dtype_of(problem)); }

Work direct_work(const Problem& problem) {
  return {least_flop_count(problem), least_bytes(problem)};
}

}  // namespace torchalgo
