// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/error_code.h"
#include "profiler/check.h"
#include "provider/cuda_device.h"

namespace torchalgo {
namespace {

// Bright pixels are so far apart that many results read none. As 11 is prime, they lie at different
// places of the tiles.
constexpr std::int64_t kFirst = 3, kStep = 11;

// Makes some pixels bright. The others become positive, so that no sum of sizes is close to 0 by
// chance.
void brighten(at::Tensor& image) {
  image.abs_().add_(0.1);
  at::Tensor pixels = image;
  for (std::int64_t dim = 2; dim < image.dim(); ++dim) {
    const std::int64_t size = image.size(dim);
    pixels = pixels.slice(dim, std::min(kFirst, size / 2), size, kStep);
  }
  pixels.fill_(kBrightPixel * image.mean().item<double>());
}

// Returns the sum of |x| |w| over what each result reads, without the bias.
at::Tensor sizes_of_terms(const Problem& problem, Sample sample) {
  for (at::Tensor& src : sample.src) src = src.abs();
  for (LayerWeights& layer : sample.weights) {
    if (layer.weights.defined()) layer.weights = layer.weights.abs();
    if (layer.bias.defined()) layer.bias = layer.bias.abs();
  }
  return reference_result(problem, sample);
}

}  // namespace

double componentwise_error(const Algorithms& algorithms, const Problem& problem,
                           const Primitive& primitive, std::uint64_t seed, const Device& device) {
  const at::NoGradGuard no_grad;
  const Algorithm* const algorithm = find_algorithm(algorithms, primitive.name);
  TORCHALGO_CHECK(algorithm != nullptr,
                  "TA4004 componentwise_error: no algorithm has the name '{}'", primitive.name);
  Offer offer =
      offer_exact(*algorithm, problem, device, primitive.name, primitive.src, primitive.dst);
  TORCHALGO_CHECK(offer.refusal.empty(), "TA4005 componentwise_error: {} cannot run {}: {}",
                  to_string(primitive), to_string(problem), offer.refusal);
  Sample sample = make_sample(problem, seed, torch_device(device));
  brighten(sample.src.at(0));
  const at::Tensor reference = reference_result(problem, sample);
  const at::Tensor result = run_once(*algorithm, problem, offer.primitives.at(0), sample);
  const at::Tensor error = result.to(reference.device(), at::kDouble).sub(reference).abs_();
  // A result without terms, as between the steps of a stride, is 0 and divides 0 by 0.
  const at::Tensor relative = error / sizes_of_terms(problem, sample);
  return at::where(error == 0, error, relative).max().item<double>();
}

}  // namespace torchalgo
