// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "base/error.h"
#include "provider/cuda_device.h"

namespace torchalgo {
namespace {

std::string pad_lane_failure(const at::Tensor& dst, Layout layout, std::int64_t channels) {
  if (!is_blocked(layout) || channels % block_size(layout) == 0) return {};
  const at::Tensor last = dst.select(1, dst.size(1) - 1);
  const at::Tensor pad = last.narrow(-1, channels % block_size(layout),
                                     block_size(layout) - channels % block_size(layout));
  if (pad.eq(0).all().item<bool>()) return {};
  return "left pad lanes that are not zero";
}

double relative_l2(const at::Tensor& result, const at::Tensor& reference) {
  const double norm = reference.norm().item<double>();
  const double difference =
      (result.to(reference.device(), at::kDouble) - reference).norm().item<double>();
  return norm > 0 ? difference / norm : difference;
}

struct RunResult {
  at::Tensor nchw;
  std::string failure;
};

RunResult run_poisoned(const Algorithm& algorithm, const Problem& problem,
                       const Primitive& primitive, const Sample& sample) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  std::vector<at::Tensor> src;
  for (std::size_t i = 0; i < sample.src.size(); ++i) {
    src.push_back(to_layout(sample.src[i], input_layout(problem, primitive, i)));
  }
  const Layout to = result_layout(problem, primitive);
  at::Tensor residual;
  if (sample.residual.defined()) residual = to_layout(sample.residual, to);
  const Packed packed =
      algorithm.pack ? algorithm.pack(problem, primitive, sample.weights) : Packed();
  const at::Device device = sample.src.at(0).device();
  at::Tensor dst;
  if (!algorithm.makes_dst) dst = empty_result(problem, to, device).fill_(kNan);
  at::Tensor workspace =
      at::empty({primitive.workspace_bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  if (primitive.workspace_bytes > 0) workspace.fill_(0xff);  // NaN in every floating point format
  void* const scratch = primitive.workspace_bytes > 0 ? workspace.data_ptr() : nullptr;
  const auto result = algorithm.run({problem, primitive, packed, src, residual, dst, scratch});
  const auto sizes = result_sizes(problem);
  return {from_layout(result, to, sizes), pad_lane_failure(result, to, sizes[1])};
}

CheckResult check_one(const Algorithm& algorithm, const Problem& problem,
                      const Primitive& primitive, const Sample& sample, const at::Tensor& reference,
                      double bound) {
  CheckResult result;
  // Twice: a race or a stale workspace seldom errs alike two times.
  for (int turn = 0; turn < 2 && result.failure.empty(); ++turn) {
    try {
      RunResult run = run_poisoned(algorithm, problem, primitive, sample);
      const double error = relative_l2(run.nchw, reference);
      result.rel_error = std::max(result.rel_error, error);
      result.failure = std::move(run.failure);
      if (!(error <= bound)) {
        result.rel_error = error;
        result.failure = fmt::format(
            "differs from the f64 reference by {:.3g} (relative L2), limit {:.3g}", error, bound);
      }
    } catch (const std::exception& error) {
      result.failure = error.what();
    }
  }
  return result;
}

}  // namespace

at::Tensor run_once(const Algorithm& algorithm, const Problem& problem, const Primitive& primitive,
                    const Sample& sample) {
  return run_poisoned(algorithm, problem, primitive, sample).nchw;
}

double error_bound(const Problem& problem, double max_rel_error) {
  switch (dtype_of(problem)) {
    case DType::kTf32:
    case DType::kF16:
      return std::max(max_rel_error, 4e-3);
    case DType::kBf16:
      return std::max(max_rel_error, 3e-2);
    case DType::kF64:
    case DType::kF32:
      break;
  }
  return max_rel_error;
}

std::vector<CheckResult> check_primitives(const Algorithms& algorithms, const Problem& problem,
                                          const std::vector<Primitive>& primitives,
                                          double max_rel_error, std::uint64_t seed,
                                          const Device& device) {
  const at::NoGradGuard no_grad;
  const Sample sample = make_sample(problem, seed, torch_device(device));
  const at::Tensor reference = reference_result(problem, sample);
  const double bound = error_bound(problem, max_rel_error);
  std::vector<CheckResult> results;
  for (const Primitive& primitive : primitives) {
    const Algorithm* algorithm = find_algorithm(algorithms, primitive.name);
    TORCHALGO_CHECK(algorithm != nullptr, "check_primitives: no algorithm has the name '{}'",
                    primitive.name);
    results.push_back(check_one(*algorithm, problem, primitive, sample, reference, bound));
  }
  return results;
}

}  // namespace torchalgo
