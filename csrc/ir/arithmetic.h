// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "ir/problem.h"

namespace torchalgo {

/// Returns the multiplications and additions of the operation by definition, whatever the algorithm
/// (2 per FMA). Moving data counts 0.
[[nodiscard]] double flop_count(const Problem& problem);

/// Returns those of flop_count() that an algorithm without transforms cannot avoid: products with
/// padding are left out. 0 for the kinds that are neither a convolution nor a linear layer.
[[nodiscard]] double least_flop_count(const Problem& problem);

/// Returns how many elements of the first data input the result depends on: a window with a stride
/// may step over some.
[[nodiscard]] double elements_read(const Problem& problem);

/// Returns how many numbers are added up to one element of the result, for the estimate of rounding
/// errors. Nothing: the result holds elements of the inputs as they are, or zeros, and is exact.
/// @throws InternalError  for a chain, whose layers round one after the other.
[[nodiscard]] std::optional<double> terms_per_element(const Problem& problem);

}  // namespace torchalgo
