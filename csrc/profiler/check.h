// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "provider/algorithm.h"

namespace torchalgo {

/// Inputs and weights of a problem in strided nchw, as the model would pass them.
struct Sample {
  std::vector<at::Tensor> src;
  at::Tensor residual;
  Weights weights;
};

/// Random data in the problem's compute type: inputs about as after a ReLU, He-scaled weights. The
/// seed decides all of it, for each kind of device.
[[nodiscard]] Sample make_sample(const Problem& problem, std::uint64_t seed,
                                 at::Device device = at::kCPU);

/// The result by ATen's reference path in f64, in strided nchw. Where the sample lies on a GPU, a
/// small problem is computed on the CPU all the same, and a large one there without cuDNN.
[[nodiscard]] at::Tensor reference_result(const Problem& problem, const Sample& sample);

/// Runs a primitive once on `sample`: converts inputs to its layouts, packs, runs on a poisoned
/// (NaN) dst and workspace, converts back to strided nchw.
[[nodiscard]] at::Tensor run_once(const Algorithm& algorithm, const Problem& problem,
                                  const Primitive& primitive, const Sample& sample);

struct CheckResult {
  double rel_error = 0;  // relative L2 to the f64 reference
  std::string failure;   // empty: within the bound, pad lanes zero, nothing left unwritten
};

/// What relative L2 a primitive may have: `max_rel_error`, or, for tf32, f16 and bf16, which no
/// algorithm can hold to it, what their rounding of inputs, result and a Winograd transform takes.
[[nodiscard]] double error_bound(const Problem& problem, double max_rel_error);

/// Runs each primitive twice on poisoned memory and compares with f64 on the problem's own shape.
/// results[i] belongs to primitives[i], whose bound is error_bound(); one that throws has failed.
/// @throws Error  if no row has a primitive's name, or nothing can run on `device`.
[[nodiscard]] std::vector<CheckResult> check_primitives(
    const Algorithms& algorithms, const Problem& problem, const std::vector<Primitive>& primitives,
    double max_rel_error, std::uint64_t seed = 0, const Device& device = {});

/// Copies logical nchw data into `layout` (pad lanes zero), and back; `sizes` are the logical ones.
/// Plain ATen code, no provider: the oracle of the layout transforms.
[[nodiscard]] at::Tensor to_layout(const at::Tensor& nchw, Layout layout);
[[nodiscard]] at::Tensor from_layout(const at::Tensor& tensor, Layout layout,
                                     const std::vector<std::int64_t>& sizes);

}  // namespace torchalgo
