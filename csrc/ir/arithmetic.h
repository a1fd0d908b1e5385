// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "ir/problem.h"

namespace torchalgo {

/// Returns the multiplications and additions of the operation by definition, whatever the algorithm
/// (2 per FMA). Moving data counts 0.
[[nodiscard]] double flop_count(const Problem& problem);

/// Returns the part of flop_count() that no algorithm avoids without a transform as Winograd's:
/// products with padding are not counted. Only convolutions and linear layers count, also as layers
/// of a chain.
[[nodiscard]] double least_flop_count(const Problem& problem);

/// Returns how many elements of the first data input the result depends on: a window with a stride
/// may step over some.
[[nodiscard]] double elements_read(const Problem& problem);

/// Returns how many numbers are added up to one element of the result, for the estimate of rounding
/// errors. Returns nullopt if the result is exact, since it holds copied elements or zeros only.
/// @throws InternalError  for a chain, whose layers round one after the other.
[[nodiscard]] std::optional<double> terms_per_element(const Problem& problem);

}  // namespace torchalgo
