// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/check.h"

namespace torchalgo {

/// The difference of a result from its reference.
struct Difference {
  double l2 = 0;     // relative to the reference
  double worst = 0;  // of one element, relative to the root mean square of the reference
};
/// @param rounding  how much of an element its own rounding may cost: `worst` leaves it out.
[[nodiscard]] Difference difference_of(const at::Tensor& result, const at::Tensor& reference,
                                       double rounding = 0);

/// Returns the parts of a result that are compared on their own: the result, or the means and the
/// variances of kMoments if inputs have an offset. Large means would hide errors beside them.
[[nodiscard]] std::vector<at::Tensor> parts_of(const Problem& problem, double offset,
                                               const at::Tensor& result);

/// A sample with its result in f64.
struct Oracle {
  Sample sample;
  double offset = 0;  // of the sample's inputs
  at::Tensor reference = {};
  double norm = 0;       // of the reference
  double condition = 1;  // how much larger than usual rounding errors may be
  /// PyTorch's result in nchw in f32 (f64 for f64), one entry per part. Empty if `offset` is 0.
  std::vector<Difference> of_torch = {};
};

/// Returns the oracle of a sample with `offset`.
///
/// In a result of few elements the sum of random terms may be close to 0 by chance. Its rounding
/// errors are not smaller, so a bound relative to the result would refuse correct algorithms. For
/// such results, the sample with the largest result of several samples is taken. They use every
/// fourth seed from `seed` on.
[[nodiscard]] Oracle make_oracle(const Problem& problem, std::uint64_t seed, at::Device device,
                                 double offset);

/// A sample with NaNs, and the elements of PyTorch's result that are NaN or numbers, on the CPU.
struct NanOracle {
  Sample sample;
  at::Tensor is_nan;
  at::Tensor is_number = {};  // undefined if a primitive may give more NaNs than PyTorch
};

/// Returns one sample with NaNs in all inputs. If `sample` has a residual, a second one has NaNs in
/// the residual only, since a NaN in the inputs of the convolution would hide its loss there.
[[nodiscard]] std::vector<NanOracle> make_nan_oracles(const Problem& problem, const Sample& sample);

}  // namespace torchalgo
