// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <limits>
#include <optional>
#include <variant>
#include <vector>

#include "ir/arithmetic.h"
#include "profiler/check.h"

namespace torchalgo {

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

bool subtracts_mean(const Problem& problem) {
  return std::holds_alternative<LayerNormProblem>(problem) ||
         std::holds_alternative<GroupNormProblem>(problem) ||
         std::holds_alternative<BatchNormProblem>(problem);
}

std::vector<double> sample_offsets(DType stored) {
  constexpr double kCoarsest = 0.125;  // deviations of 1 keep 3 binary digits
  std::vector<double> offsets = {0, 10, 1000};
  std::erase_if(offsets, [epsilon = epsilon_of(stored)](double offset) {
    return offset * epsilon > kCoarsest;
  });
  return offsets;
}

double rounding_error(const Problem& problem, double factor, DType stored) {
  // Each of n additions rounds a partial sum, which grows with the square root of the terms'
  // number: together 0.2 sqrt(n) of epsilon beside the sum itself (Higham 2002, section 4.2, for
  // random terms); 4 is for an activation and a residual.
  // The errors of a chain's layers add up.
  double roundings = 0;
  for (const Problem& layer : layers_of(problem)) {
    const std::optional<double> terms = terms_per_element(layer);
    if (terms) roundings += 4 + 0.5 * std::sqrt(*terms);
  }
  const DType dtype = dtype_of(problem);
  // Inputs, weights and results, each rounded by half an epsilon at most. The root mean square of
  // one rounding is 0.21 epsilon, that of all three 0.37. An activation may enlarge the error
  // relative to its result. The layers of a chain store what is between them.
  const double storing =
      stored == dtype ? 0 : 0.8 * epsilon_of(stored) * std::sqrt(double(layers_of(problem).size()));
  return storing + factor * epsilon_of(dtype) * roundings;
}

}  // namespace torchalgo
