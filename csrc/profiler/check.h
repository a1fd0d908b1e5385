// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "profiler/announce.h"
#include "provider/algorithm.h"

namespace torchalgo {

/// Inputs and weights of a problem in strided nchw, as the model would pass them.
struct Sample {
  std::vector<at::Tensor> src;
  at::Tensor residual;
  Weights weights;
};

/// Random data in the problem's compute type, the seed decides all of it, for each kind of device:
/// inputs as after a ReLU, that is about half zeros (of both signs), with some negative values;
/// He-scaled weights. Where the problem has an activation, it meets values on both sides of each of
/// its bends.
[[nodiscard]] Sample make_sample(const Problem& problem, std::uint64_t seed,
                                 at::Device device = at::kCPU);

/// Returns a copy of `tensor` in which about every second element is NaN. The seed decides which.
[[nodiscard]] at::Tensor with_nans(const at::Tensor& tensor, std::uint64_t seed);

/// Computes the result in `type` by ATen's reference path, in strided nchw. A small problem on a
/// GPU is computed on the CPU, and a large one on the GPU without cuDNN.
[[nodiscard]] at::Tensor reference_result(const Problem& problem, const Sample& sample,
                                          at::ScalarType type = at::kDouble);

/// Runs a primitive once on `sample`: converts inputs to its layouts, packs, runs on a poisoned
/// (NaN) dst and workspace, converts back to strided nchw.
/// @throws Error  if it wrote where it may not, or returned another kind of tensor.
[[nodiscard]] at::Tensor run_once(const Algorithm& algorithm, const Problem& problem,
                                  const Primitive& primitive, const Sample& sample);

struct CheckResult {
  double rel_error = 0;  // relative L2 to the f64 reference
  std::string failure;   // empty: passed all of check_primitives
};

/// What relative L2 a primitive may have: `max_rel_error`, or, for tf32, f16 and bf16, which no
/// algorithm can hold to it, what their rounding of inputs, result and a Winograd transform takes.
[[nodiscard]] double error_bound(const Problem& problem, double max_rel_error);

/// Returns the relative L2 to f64 that rounding alone may cause on a sample of make_sample,
/// whatever error the caller allows: what exceeds it is wrong. 0 for problems that only pick or
/// copy.
///
/// @param factor  Algorithm::rounding.
[[nodiscard]] double rounding_error(const Problem& problem, double factor);

/// Compares each primitive with f64 on the problem's own shape. It must
/// - stay within error_bound() and within its algorithm's rounding_error(), in relative L2 over all
///   elements, and within a multiple of that in each element;
/// - write all of its result, its pad lanes with zero, and nothing else: not its inputs, not the
///   memory around result, workspace and inputs, which are guarded by NaN;
/// - not depend on what result and workspace held before, which is poisoned otherwise each time;
/// - give the same bits in each of 6 to 12 runs (more where one is short), if it claims to;
/// - do so on other data and weights (where the reference takes no seconds);
/// - give NaN wherever PyTorch does if its inputs hold NaNs, and where its residual does.
/// results[i] belongs to primitives[i]; one that throws has failed. `announce` may be null.
/// @throws Error  if no algorithm offers a primitive, or nothing can run on `device`.
[[nodiscard]] std::vector<CheckResult> check_primitives(
    const Algorithms& algorithms, const Problem& problem, const std::vector<Primitive>& primitives,
    double max_rel_error, std::uint64_t seed = 0, const Device& device = {},
    const Announce& announce = nullptr);

/// Copies logical nchw data into `layout` (pad lanes zero), and back; `sizes` are the logical ones.
/// Plain ATen code, no provider: the oracle of the layout transforms.
[[nodiscard]] at::Tensor to_layout(const at::Tensor& nchw, Layout layout);
[[nodiscard]] at::Tensor from_layout(const at::Tensor& tensor, Layout layout,
                                     const std::vector<std::int64_t>& sizes);

}  // namespace torchalgo
