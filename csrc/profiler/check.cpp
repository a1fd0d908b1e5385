// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/check.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isnan.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/error_code.h"
#include "ir/arithmetic.h"
#include "profiler/guarded.h"
#include "profiler/oracle.h"
#include "provider/cpu_device.h"
#include "provider/cuda_device.h"
#include "provider/kernel.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

// Previous contents of memory, used in turn, which a run must not depend on: NaN in every floating
// point format, a large value, and a large negative value. A maximum or a ReLU would hide some of
// them.
constexpr int kPoisons[] = {0xff, 0x4b, 0xcb};

// How far the worst element may lie from the reference, in units of the bound times the result's
// root mean square. Rounding errors are close to normal: the largest of 10^9 is 6 deviations. The
// errors of all algorithms stay below a third of their bounds.
constexpr double kWorstElement = 16;

std::string pad_lane_failure(const at::Tensor& dst, Layout layout, std::int64_t channels) {
  if (!is_blocked(layout) || channels % block_size(layout) == 0) return {};
  const at::Tensor last = dst.select(1, dst.size(1) - 1);
  const at::Tensor pad = last.narrow(-1, channels % block_size(layout),
                                     block_size(layout) - channels % block_size(layout));
  if (pad.eq(0).all().item<bool>()) return {};
  return "left pad lanes that are not zero";
}

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return a.equal(b) || a.eq(b).logical_or_(a.ne(a).logical_and_(b.ne(b))).all().item<bool>();
}

// A sample in the primitive's layouts, with copies of all data that must not change.
class Prepared {
 public:
  Prepared(const Kernel& kernel, const Sample& sample) : kernel_(kernel) {
    for (std::size_t i = 0; i < sample.src.size(); ++i) {
      src_.emplace_back(
          to_layout(sample.src[i], input_layout(kernel.problem, kernel.primitive, i)));
    }
    if (sample.residual.defined()) residual_.emplace(to_layout(sample.residual, layout()));
    packed_ = pack(kernel, sample.weights);
    for_each_tensor(packed_, [&](const at::Tensor& tensor) {
      const bool is_plain = tensor.defined() && tensor.has_storage();
      packed_before_.push_back(is_plain ? tensor.clone() : at::Tensor());
    });
  }

  struct Run {
    at::Tensor nchw;
    std::string failure;
  };

  // Runs the kernel on memory filled with `poison`. Returns the result in strided nchw, or the
  // reason why the run failed apart from its numbers.
  Run run(int poison) const {
    const at::Device device = src_.at(0).tensor().device();
    const Problem& problem = kernel_.problem;
    const std::int64_t workspace_bytes = kernel_.primitive.workspace_bytes;
    const at::Tensor like = empty_result(problem, layout(), at::kMeta);
    std::optional<GuardedMemory> dst;
    if (!kernel_.makes_dst) {
      dst.emplace(static_cast<std::int64_t>(like.nbytes()), device);
      dst->bytes().fill_(poison);
    }
    GuardedMemory workspace(workspace_bytes, device);
    workspace.bytes().fill_(poison);
    std::vector<at::Tensor> src;
    for (const GuardedCopy& input : src_) src.push_back(input.tensor());
    const at::Tensor result =
        kernel_.run({packed_, src, residual_ ? residual_->tensor() : at::Tensor(),
                     dst ? dst->as(like) : at::Tensor(),
                     workspace_bytes > 0 ? workspace.bytes().data_ptr() : nullptr});
    std::string failure = form_failure(result, like);
    if (!failure.empty()) return {{}, std::move(failure)};
    if (dst && !dst->is_intact()) return {{}, "wrote outside of its result"};
    if (!workspace.is_intact()) return {{}, "wrote outside of its workspace"};
    if (!is_input_unchanged()) return {{}, "wrote to its inputs, or beside them"};
    const auto sizes = result_sizes(problem);
    return {from_layout(result, layout(), sizes), pad_lane_failure(result, layout(), sizes[1])};
  }

 private:
  [[nodiscard]] Layout layout() const { return result_layout(kernel_.problem, kernel_.primitive); }

  static std::string form_failure(const at::Tensor& result, const at::Tensor& like) {
    if (result.defined() && result.sizes() == like.sizes() &&
        result.scalar_type() == like.scalar_type()) {
      return {};
    }
    return fmt::format("returned {} {}, expected {} {}",
                       result.defined() ? at::toString(result.scalar_type()) : "nothing",
                       result.defined() ? fmt::format("[{}]", fmt::join(result.sizes(), ", ")) : "",
                       at::toString(like.scalar_type()),
                       fmt::format("[{}]", fmt::join(like.sizes(), ", ")));
  }

  [[nodiscard]] bool is_input_unchanged() const {
    for (const GuardedCopy& input : src_) {
      if (!input.is_unchanged()) return false;
    }
    bool is_unchanged = true;
    auto before = packed_before_.begin();
    for_each_tensor(packed_, [&](const at::Tensor& tensor) {
      if (before->defined() && !is_same(tensor, *before)) is_unchanged = false;
      ++before;
    });
    if (!is_unchanged) return false;
    return !residual_ || residual_->is_unchanged();
  }

  const Kernel& kernel_;
  std::vector<GuardedCopy> src_;
  std::optional<GuardedCopy> residual_;
  Packed packed_;
  std::vector<at::Tensor> packed_before_;  // its tensors in order, undefined if without storage
};

// The errors that a primitive may have.
struct Bounds {
  double rel_error;    // the caller's bound, or the algorithm's rounding error if that is smaller
  double times_torch;  // times PyTorch's error, on inputs with an offset
  // Relative to an element, if tensors are stored in a coarser type: a large one is rounded by more
  // than the others. Half an epsilon is that of the input, and half that of the result.
  double element_rounding = 0;
};

Bounds bounds_of(const Algorithm& algorithm, const Problem& problem, DType stored,
                 double max_rel_error) {
  constexpr double kOtherOrders = 4;  // other orders of the same sums are this much worse at most
  const double allowed = error_bound(stored, max_rel_error);
  const double element_rounding = stored == dtype_of(problem) ? 0 : epsilon_of(stored);
  if (!algorithm.rounding) return {allowed, kOtherOrders, element_rounding};
  return {std::min(allowed, rounding_error(problem, *algorithm.rounding, stored)),
          kOtherOrders * *algorithm.rounding, element_rounding};
}

std::string on_inputs_of(const Oracle& oracle) {
  return oracle.offset > 0 ? fmt::format(", on inputs with a mean of {} deviations", oracle.offset)
                           : std::string();
}

// Compares one part of a result. `of_torch` is PyTorch's error, or 0.
void compare_part(const Difference& found, const Difference& of_torch, const Oracle& oracle,
                  const Bounds& bounds, CheckResult& check) {
  const double bound = bounds.rel_error * oracle.condition;
  const double limit = std::max(bound, bounds.times_torch * of_torch.l2);
  if (!(found.l2 <= limit)) {
    check.rel_error = found.l2;
    check.failure =
        fmt::format("differs from the f64 reference by {:.3g} (relative L2), limit {:.3g}{}",
                    found.l2, limit, on_inputs_of(oracle));
    return;
  }
  if (oracle.offset == 0) check.rel_error = std::max(check.rel_error, found.l2);
  const double worst_limit = std::max(kWorstElement * bound, bounds.times_torch * of_torch.worst);
  if (!(found.worst <= worst_limit)) {
    check.failure = fmt::format(
        "has an element that differs from the f64 reference by {:.3g} of the mean, limit {:.3g}{}",
        found.worst, worst_limit, on_inputs_of(oracle));
  }
}

void compare(const Problem& problem, const at::Tensor& result, const Oracle& oracle,
             const Bounds& bounds, CheckResult& check) {
  const auto parts = parts_of(problem, oracle.offset, result);
  const auto exact = parts_of(problem, oracle.offset, oracle.reference);
  for (std::size_t i = 0; i < parts.size() && check.failure.empty(); ++i) {
    compare_part(difference_of(parts[i], exact[i], bounds.element_rounding),
                 oracle.of_torch.empty() ? Difference() : oracle.of_torch[i], oracle, bounds,
                 check);
  }
}

bool claims_same_bits(const Algorithm& algorithm, const Problem& problem,
                      const Primitive& primitive, const Device& device) {
  if (!algorithm.offer) return true;
  const Offer offer = algorithm.offer_one ? algorithm.offer_one(problem, device, primitive)
                                          : algorithm.offer(problem, device);
  for (std::size_t i = 0; i < std::min(offer.primitives.size(), offer.traits.size()); ++i) {
    const Primitive& offered = offer.primitives[i];
    if (offered.name == primitive.name && offered.src == primitive.src &&
        offered.dst == primitive.dst) {
      return offer.traits[i].is_deterministic;
    }
  }
  return true;
}

// Returns the number of runs. A data race causes errors only sometimes, so short kernels run more
// often.
int run_count(const Problem& problem) {
  constexpr double kFlops = 4e8;
  return static_cast<int>(std::clamp(kFlops / std::max(1.0, flop_count(problem)), 6.0, 12.0));
}

void check_runs(const Kernel& kernel, bool has_same_bits, const Oracle& oracle,
                const Bounds& bounds, int runs, CheckResult& check) {
  const Prepared prepared(kernel, oracle.sample);
  at::Tensor first;
  for (int turn = 0; turn < runs && check.failure.empty(); ++turn) {
    Prepared::Run run = prepared.run(kPoisons[turn % std::size(kPoisons)]);
    check.failure = std::move(run.failure);
    if (!check.failure.empty()) return;
    if (first.defined() && run.nchw.equal(first)) continue;
    compare(kernel.problem, run.nchw, oracle, bounds, check);
    if (first.defined() && check.failure.empty() && has_same_bits) {
      check.failure = "gave other bits in another run, and claims to give the same";
    }
    if (!first.defined()) first = run.nchw.clone();
  }
}

// Returns an empty text if the primitive's result is NaN where PyTorch's is, and a number where
// PyTorch's is one.
std::string nan_failure(const Kernel& kernel, const NanOracle& oracle) {
  // The poison of the result is not NaN, so that elements that are not written do not count as NaN.
  Prepared::Run run = Prepared(kernel, oracle.sample).run(kPoisons[1]);
  if (!run.failure.empty()) return std::move(run.failure) + ", with NaNs in its inputs";
  const at::Tensor is_nan = at::isnan(run.nchw).cpu();
  const auto count = [](const at::Tensor& chosen) { return chosen.sum().item<std::int64_t>(); };
  const std::int64_t lost = count(oracle.is_nan.logical_and(is_nan.logical_not()));
  if (lost > 0) {
    return fmt::format("loses a NaN: {} of {} results that are NaN in PyTorch are numbers", lost,
                       count(oracle.is_nan));
  }
  if (!oracle.is_number.defined()) return {};
  const std::int64_t spread = count(oracle.is_number.logical_and(is_nan));
  if (spread == 0) return {};
  return fmt::format("spreads a NaN: {} of {} results that are numbers in PyTorch are NaN", spread,
                     count(oracle.is_number));
}

// The samples with which a problem's primitives are checked.
struct Oracles {
  std::vector<Oracle> numbers;
  std::vector<NanOracle> nans;
};

DType type_on(const Device& device, const Algorithm& algorithm, const Problem& problem,
              const Primitive& primitive) {
  return device.kind == DeviceKind::kCpu ? computed_type(algorithm, problem, primitive)
                                         : stored_type(primitive, dtype_of(problem));
}

CheckResult check_one(const Algorithm& algorithm, const Problem& problem,
                      const Primitive& primitive, const Oracles& oracles, double max_rel_error,
                      const Device& device) {
  CheckResult check;
  const DType stored = type_on(device, algorithm, problem, primitive);
  const Bounds bounds = bounds_of(algorithm, problem, stored, max_rel_error);
  const std::vector<double> offsets = sample_offsets(stored);
  try {
    const Kernel kernel = algorithm.prepare(problem, primitive, device);
    const bool has_same_bits = claims_same_bits(algorithm, problem, primitive, device);
    // A run on other data detects results that are kept from earlier runs.
    for (std::size_t i = 0; i < oracles.numbers.size() && check.failure.empty(); ++i) {
      const double offset = oracles.numbers[i].offset;
      if (std::find(offsets.begin(), offsets.end(), offset) == offsets.end()) continue;
      check_runs(kernel, has_same_bits, oracles.numbers[i], bounds, i == 0 ? run_count(problem) : 1,
                 check);
    }
    for (std::size_t i = 0; i < oracles.nans.size() && check.failure.empty(); ++i) {
      check.failure = nan_failure(kernel, oracles.nans[i]);
    }
  } catch (const std::exception& error) {
    check.failure = without_code(error.what());
  }
  return check;
}

// Returns the primitive as `algorithm` offers it, with more workspace if the caller gives it more.
// On a device that is only described, the algorithm itself reports the error.
Primitive offered(const Algorithm& algorithm, const Problem& problem, const Device& device,
                  const Primitive& primitive) {
  if (!algorithm.offer || !runs_on(algorithm, device.kind)) return primitive;
  const Offer offer =
      offer_exact(algorithm, problem, device, primitive.name, primitive.src, primitive.dst);
  TORCHALGO_CHECK(offer.refusal.empty(), "TA4005 check_primitives: {} cannot run {}: {}",
                  to_string(primitive), to_string(problem), offer.refusal);
  Primitive result = offer.primitives.at(0);
  result.workspace_bytes = std::max(result.workspace_bytes, primitive.workspace_bytes);
  return result;
}

}  // namespace

at::Tensor run_once(const Algorithm& algorithm, const Problem& problem, const Primitive& primitive,
                    const Sample& sample) {
  const at::Device device = (sample.src.empty() ? sample.residual : sample.src[0]).device();
  const Kernel kernel = algorithm.prepare(
      problem, primitive, device.is_cpu() ? cpu_device() : cuda_device(device.index()));
  Prepared::Run run = Prepared(kernel, sample).run(kPoisons[0]);
  TORCHALGO_CHECK(run.failure.empty(), "TA3001 {} failed on {}: {}", to_string(primitive),
                  to_string(problem), run.failure);
  return run.nchw;
}

DType computed_type(const Algorithm& algorithm, const Problem& problem,
                    const Primitive& primitive) {
  const DType stored = stored_type(primitive, dtype_of(problem));
  if (stored != DType::kF32 || algorithm.bind) return stored;  // bind: code of our own
  const auto allows = [](at::Float32Precision precision) {
    const auto is_set = [&](at::Float32Op op) {
      return at::globalContext().float32Precision(at::Float32Backend::MKLDNN, op) == precision;
    };
    return is_set(at::Float32Op::CONV) || is_set(at::Float32Op::MATMUL);
  };
  if (allows(at::Float32Precision::BF16)) return DType::kBf16;
  return allows(at::Float32Precision::TF32) ? DType::kTf32 : stored;
}

double error_bound(DType stored, double max_rel_error) {
  switch (stored) {
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
                                          const Device& device, const Announce& announce) {
  const at::NoGradGuard no_grad;
  std::vector<const Algorithm*> owners;  // by primitive
  std::vector<double> largest;           // the largest offset of each primitive
  for (const Primitive& primitive : primitives) {
    const Algorithm* algorithm = find_algorithm(algorithms, primitive.name);
    TORCHALGO_CHECK(algorithm != nullptr, "TA4004 check_primitives: no algorithm has the name '{}'",
                    primitive.name);
    owners.push_back(algorithm);
    largest.push_back(sample_offsets(type_on(device, *algorithm, problem, primitive)).back());
  }
  Oracles oracles;
  std::vector<double> offsets = sample_offsets(dtype_of(problem));
  // Above this an f64 reference takes seconds, so there are no samples between the first and last.
  constexpr double kMostFlopsOfAll = 2e9;
  if (flop_count(problem) > kMostFlopsOfAll) {
    const std::vector<double> all = std::exchange(offsets, {});
    std::copy_if(all.begin(), all.end(), std::back_inserter(offsets), [&](double offset) {
      return offset == 0 || std::find(largest.begin(), largest.end(), offset) != largest.end();
    });
  }
  for (const double offset : offsets) {
    const std::uint64_t own_seed = seed + oracles.numbers.size();
    oracles.numbers.push_back(make_oracle(problem, own_seed, torch_device(device), offset));
  }
  oracles.nans = make_nan_oracles(problem, oracles.numbers[0].sample);
  std::vector<CheckResult> results;
  for (std::size_t i = 0; i < primitives.size(); ++i) {
    const Primitive primitive = offered(*owners[i], problem, device, primitives[i]);
    if (announce) announce(i);
    results.push_back(check_one(*owners[i], problem, primitive, oracles, max_rel_error, device));
  }
  return results;
}

}  // namespace torchalgo
