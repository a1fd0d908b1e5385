// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/algorithm.h"
#include "profiler/announce.h"
#include "provider/weights.h"

namespace torchalgo {

/// Inputs and weights of a problem in strided nchw, as the model would pass them.
struct Sample {
  std::vector<at::Tensor> src;
  at::Tensor residual;
  Weights weights;
};

/// Returns random data in the problem's compute type. On one kind of device, the same seed gives
/// the same data. Inputs are as after a ReLU: about half are zeros of both signs, and some values
/// are negative. Weights are He-scaled. If the problem has an activation, the values before it lie
/// on both sides of each of its kinks. For this, an elementwise problem with an activation has
/// normally distributed inputs. So has the gradient of an activation, but an eighth of its inputs
/// is zero.
///
/// If `offset` is above 0, inputs are normally distributed around it with the deviation 1, except
/// residuals and gradients. Weights are divided by it, so that results keep their size. Those of
/// norms are not, because norms subtract the mean.
[[nodiscard]] Sample make_sample(const Problem& problem, std::uint64_t seed,
                                 at::Device device = at::kCPU, double offset = 0);

/// Returns whether the operation subtracts a mean: it is a norm. Then an error of rounding an input
/// is larger in the result, by the factor mean / deviation.
[[nodiscard]] bool subtracts_mean(const Problem& problem);

/// Returns the offsets of the samples with which a primitive is checked: 0, 10 and 1000, unless
/// `stored`, the type of its data, has too few digits for an offset and deviations of 1.
[[nodiscard]] std::vector<double> sample_offsets(DType stored);

/// Returns a copy of `tensor` in which about every second element is NaN. The seed decides which.
[[nodiscard]] at::Tensor with_nans(const at::Tensor& tensor, std::uint64_t seed);

/// Computes the result in `type` by ATen's reference path, in strided nchw. A small problem on a
/// GPU is computed on the CPU, and a large one on the GPU without cuDNN.
[[nodiscard]] at::Tensor reference_result(const Problem& problem, const Sample& sample,
                                          at::ScalarType type = at::kDouble);

/// Runs a primitive once on `sample`. It converts the inputs to the primitive's layouts, packs the
/// weights, runs on dst and workspace that are filled with NaN, and converts the result to strided
/// nchw.
/// @throws Error  if the primitive wrote outside its result, or returned another kind of tensor.
[[nodiscard]] at::Tensor run_once(const Algorithm& algorithm, const Problem& problem,
                                  const Primitive& primitive, const Sample& sample);

struct CheckResult {
  double rel_error = 0;  // relative L2 to the f64 reference, without an offset
  std::string failure;   // empty: passed all of check_primitives
};

/// Returns the largest relative L2 error that a primitive that stores its data as `stored` may
/// have: `max_rel_error` for f64 and f32. For tf32, f16 and bf16 it is at least the error that
/// rounding of the inputs, the result and a Winograd transform causes, since no algorithm is more
/// accurate.
[[nodiscard]] double error_bound(DType stored, double max_rel_error);

/// Returns the distance from 1 to the next number of the type.
[[nodiscard]] double epsilon_of(DType dtype);

/// Returns the relative L2 error to f64 that rounding alone may cause on a sample of make_sample. A
/// larger error is a bug, whatever error the caller allows. Returns 0 for problems that only select
/// or copy elements in the problem's type.
///
/// @param factor  Algorithm::rounding.
/// @param stored  stored_type() of the primitive. If it is coarser than the problem's type, inputs,
/// weights and results are rounded to it once, and sums have the problem's type.
[[nodiscard]] double rounding_error(const Problem& problem, double factor, DType stored);

/// Returns the type in which a primitive of `algorithm` computes on the CPU: stored_type(), or a
/// coarser one if torch's fp32_precision allows it for products of f32 in code of torch.
[[nodiscard]] DType computed_type(const Algorithm& algorithm, const Problem& problem,
                                  const Primitive& primitive);

/// Compares each primitive with an f64 reference on the problem's own shape. A primitive must
/// - stay within error_bound() and within its algorithm's rounding_error(), in relative L2 over all
///   elements, and within a multiple of that in each element;
/// - write all of its result, with zeros in pad lanes, and nothing else: neither its inputs nor the
///   guards of NaN around result, workspace and inputs;
/// - not depend on the previous content of result and workspace, which differs at each run;
/// - give the same bits in each of 6 to 12 runs (more if a run is short), if it claims to;
/// - meet these conditions on other data and weights as well, whose inputs have the means of
///   sample_offsets(), or only the largest one if the reference takes seconds. Then errors may also
///   be a few times those of PyTorch in nchw, and those of norms larger by the mean;
/// - give NaN wherever PyTorch does if its inputs or its residual hold NaNs, and nowhere else. The
///   results of convolutions and gradients of activations may hold more.
///
/// results[i] belongs to primitives[i]. A primitive that throws has failed. `announce` may be null.
/// @throws Error  if no algorithm offers a primitive, or nothing can run on `device`.
[[nodiscard]] std::vector<CheckResult> check_primitives(
    const Algorithms& algorithms, const Problem& problem, const std::vector<Primitive>& primitives,
    double max_rel_error, std::uint64_t seed = 0, const Device& device = {},
    const Announce& announce = nullptr);

/// Returns the largest componentwise error of a primitive on a random image with bright pixels:
/// |result - reference| / sum |x| |w| of each result, where the sum is over what the result reads.
/// Pixels far apart are kBrightPixel times as large as the others on average, in all channels. A
/// plain sum errs by a few units of rounding. Algorithms of transform_of() err by much more where
/// no bright pixel is read, which a norm over all results does not show (Higham 2002, sections 3.1
/// and 23.2.2).
///
/// @param problem  a convolution without an epilogue.
/// @throws Error  if no algorithm offers the primitive for this problem.
[[nodiscard]] double componentwise_error(const Algorithms& algorithms, const Problem& problem,
                                         const Primitive& primitive, std::uint64_t seed = 0,
                                         const Device& device = {});
constexpr double kBrightPixel = 1e4;

/// Copies logical nchw data into `layout`, with zeros in pad lanes, and rounds it to the layout's
/// type. Both functions use plain ATen
/// code and no provider, because layout transforms are checked against them.
[[nodiscard]] at::Tensor to_layout(const at::Tensor& nchw, Layout layout);
/// Copies data in `layout` with the logical `sizes` to nchw.
[[nodiscard]] at::Tensor from_layout(const at::Tensor& tensor, Layout layout,
                                     const std::vector<std::int64_t>& sizes);

}  // namespace torchalgo
