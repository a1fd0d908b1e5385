// SPDX-License-Identifier: BSD-3-Clause
// torchalgo::attention: softmax(scale * query * key^T + bias) * value, which PyTorch computes in
// five ops or more. torchalgo::linear_attention has no softmax. csrc/simplify/passes.h puts both
// into graphs. A plan gives them the name of a primitive.

#include "provider/attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "all_algorithms.h"
#include "base/error.h"
#include "ops/fallback.h"
#include "ops/settings.h"
#include "provider/cpu_device.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Sizes = std::vector<std::int64_t>;

// One call of an op. The tensors are [n, heads, tokens, features], or [n, tokens, features] of one
// head.
struct Call {
  AttentionProblem problem;             // its kind, scale and epsilon
  c10::SmallVector<at::Tensor, 4> src;  // query, key, value, and the bias if there is one
  at::IntArrayRef order;  // the dimensions of the result, the one with the largest stride first
};

// Returns `tensor` with its memory in the order of the result.
at::Tensor in_order(const at::Tensor& tensor, at::IntArrayRef order) {
  Sizes back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<std::int64_t>(i);
  return tensor.permute(order).contiguous().permute(back);
}

at::Tensor attend_with_torch(const Call& call) {
  return in_order(attend(call.problem, {call.src.data(), call.src.size()}), call.order);
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         !tensor.is_neg() && tensor.numel() > 0;
}

// Returns the problem with the sizes of the call. Returns nullopt if the tensors are no plain ones
// of the CPU, or do not fit each other.
std::optional<AttentionProblem> problem_of(const Call& call) {
  const at::Tensor &q = call.src[0], &k = call.src[1], &v = call.src[2];
  const std::int64_t rank = q.dim();
  if ((rank != 3 && rank != 4) || k.dim() != rank || v.dim() != rank) return std::nullopt;
  if (!std::all_of(call.src.begin(), call.src.end(), is_plain)) return std::nullopt;
  if (q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2)) return std::nullopt;
  for (std::int64_t i = 0; i < rank - 2; ++i) {
    if (q.size(i) != k.size(i) || q.size(i) != v.size(i)) return std::nullopt;
  }
  AttentionProblem problem = call.problem;
  problem.n = q.size(0);
  problem.heads = rank == 4 ? q.size(1) : 0;
  problem.queries = q.size(-2);
  problem.keys = k.size(-2);
  problem.depth = q.size(-1);
  problem.width = v.size(-1);
  if (call.src.size() > 3) problem.bias = call.src[3].sizes().vec();
  if (!can_broadcast_bias(problem)) return std::nullopt;
  return problem;
}

at::Tensor empty_in_order(const Sizes& sizes, at::IntArrayRef order) {
  Sizes strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= sizes[order[i]];
  }
  return at::empty_strided(sizes, strides, at::kFloat);
}

// A kernel that is bound to a problem, and what it was bound for.
struct Bound {
  AttentionProblem problem;
  std::string primitive;
  int threads;
  Resolution resolution;
};

// Returns the name of our own algorithm for the problem: it needs no copy, whatever the strides.
std::string own_primitive(const AttentionProblem& problem) {
  const Device device = cpu_device();
  const auto own = std::ranges::find_if(all_algorithms(), [&](const Algorithm& algorithm) {
    return algorithm.bind && algorithm.offer(problem, device).refusal.empty();
  });
  TORCHALGO_ASSERT(own != all_algorithms().end());
  return std::string(own->name);
}

// Returns the kernel of a primitive, or that of another one that runs instead. Without a name, it
// is that of our own algorithm. The reference is valid until the next call on this thread.
const Resolution& kernel_for(const AttentionProblem& problem, std::string_view primitive) {
  // If a thread meets more problems than this, it binds all anew.
  constexpr std::size_t kMostBound = 64;
  thread_local std::vector<Bound> known;
  const int threads = at::get_num_threads();
  for (const Bound& bound : known) {
    if (bound.threads == threads && bound.primitive == primitive && bound.problem == problem)
      return bound.resolution;
  }
  const Primitive planned = {primitive.empty() ? own_primitive(problem) : std::string(primitive),
                             Layout::kNchw, Layout::kNchw};
  Resolution resolution = resolve(planned, problem, all_algorithms(), cpu_device());
  if (known.size() >= kMostBound) known.clear();
  known.push_back({problem, std::string(primitive), threads, std::move(resolution)});
  return known.back().resolution;
}

void note_fallback(const AttentionProblem& problem, const Resolution& resolution) {
  const std::string spelling = to_string(problem);
  const bool is_new = count_fallback(spelling, resolution.reason);
  TORCHALGO_CHECK(
      !is_strict(),
      "TA4307 torchalgo: the choice for {} cannot run, and set_strict(True) forbids {}: {}; "
      "choose another algorithm, or call torchalgo.set_strict(False)",
      spelling, resolution.name(), resolution.reason);
  if (is_new) {
    TORCH_WARN("torchalgo: ", resolution.reason, "; ", resolution.name(), " runs instead");
  }
}

at::Tensor run(const Call& call, std::string_view primitive) {
  const std::optional<AttentionProblem> problem = problem_of(call);
  if (!problem) return attend_with_torch(call);
  const Resolution& resolution = kernel_for(*problem, primitive);
  if (resolution.step != Step::kPlanned) note_fallback(*problem, resolution);
  const Kernel& kernel = *resolution.kernel;
  const std::span<const at::Tensor> src = {call.src.data(), call.src.size()};
  const Packed no_weights;
  if (kernel.makes_dst) return in_order(kernel.run({no_weights, src, {}, {}}), call.order);
  Sizes sizes = call.src[0].sizes().vec();
  sizes.back() = problem->width;
  const at::Tensor dst = empty_in_order(sizes, call.order);
  const at::Tensor workspace = empty_bytes(kernel.primitive.workspace_bytes, at::kCPU);
  return kernel.run({no_weights, src, {}, dst, workspace.data_ptr()});
}

void check_order(const char* op, std::int64_t rank, at::IntArrayRef order) {
  Sizes sorted = order.vec();
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = static_cast<std::int64_t>(sorted.size()) == rank;
  for (std::int64_t i = 0; is_permutation && i < rank; ++i) is_permutation = sorted[i] == i;
  TORCHALGO_CHECK(is_permutation,
                  "TA4303 torchalgo::{}: the order of a result of rank {} needs each of its "
                  "dimensions once",
                  op, rank);
}

Call call_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
             const OptionalTensor& bias, std::optional<double> scale, at::IntArrayRef order) {
  check_order("attention", query.dim(), order);
  TORCHALGO_CHECK(!bias || bias->dim() <= query.dim(),
                  "TA4303 torchalgo::attention: expected a bias of rank {} or less, got {}",
                  query.dim(), bias->dim());
  Call call = {{}, {query, key, value}, order};
  call.problem.scale = scale;
  // The problem of a bias without dimensions would be that of none.
  if (bias) call.src.push_back(bias->dim() == 0 ? bias->unsqueeze(0) : *bias);
  return call;
}

Call call_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
             double epsilon, at::IntArrayRef order) {
  check_order("linear_attention", query.dim(), order);
  Call call = {{}, {query, key, value}, order};
  call.problem.kind = AttentionKind::kLinear;
  call.problem.epsilon = epsilon;
  return call;
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const OptionalTensor& bias, std::optional<double> scale, at::IntArrayRef order,
                     std::string_view primitive) {
  return run(call_of(query, key, value, bias, scale, order), primitive);
}
at::Tensor attention_with_torch(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const OptionalTensor& bias,
                                std::optional<double> scale, at::IntArrayRef order,
                                std::string_view) {
  return attend_with_torch(call_of(query, key, value, bias, scale, order));
}

at::Tensor linear_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            double epsilon, at::IntArrayRef order, std::string_view primitive) {
  return run(call_of(query, key, value, epsilon, order), primitive);
}
at::Tensor linear_attention_with_torch(const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value, double epsilon,
                                       at::IntArrayRef order, std::string_view) {
  return attend_with_torch(call_of(query, key, value, epsilon, order));
}

bool needs_derivative(const at::Tensor& tensor) {
  return tensor._fw_grad(/*level=*/0).defined() ||
         (at::GradMode::is_enabled() && tensor.requires_grad());
}

bool needs_derivative(const OptionalTensor& tensor) { return tensor && needs_derivative(*tensor); }

template <class Op>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Op>();
}

// With derivatives PyTorch's ops compute it, which have them.
at::Tensor attention_autograd(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const OptionalTensor& bias,
                              std::optional<double> scale, at::IntArrayRef order,
                              std::string_view primitive) {
  if (needs_derivative(query) || needs_derivative(key) || needs_derivative(value) ||
      needs_derivative(bias)) {
    return attention_with_torch(query, key, value, bias, scale, order, primitive);
  }
  static const auto op = find_op<decltype(attention)>("torchalgo::attention");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(query, key, value, bias, scale, order, primitive);
}
at::Tensor linear_attention_autograd(const at::Tensor& query, const at::Tensor& key,
                                     const at::Tensor& value, double epsilon, at::IntArrayRef order,
                                     std::string_view primitive) {
  if (needs_derivative(query) || needs_derivative(key) || needs_derivative(value))
    return linear_attention_with_torch(query, key, value, epsilon, order, primitive);
  static const auto op = find_op<decltype(linear_attention)>("torchalgo::linear_attention");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(query, key, value, epsilon, order, primitive);
}

// The defaults are on disk: TorchScript drops arguments that equal them. Never change one.
TORCH_LIBRARY_FRAGMENT(torchalgo, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, float? scale, int[] order, "
      "str primitive=\"\") -> Tensor");
  m.def(
      "linear_attention(Tensor query, Tensor key, Tensor value, float epsilon, int[] order, "
      "str primitive=\"\") -> Tensor");
}
TORCH_LIBRARY_IMPL(torchalgo, CPU, m) {
  m.impl("attention", attention);
  m.impl("linear_attention", linear_attention);
}
TORCH_LIBRARY_IMPL(torchalgo, CompositeExplicitAutograd, m) {
  m.impl("attention", attention_with_torch);
  m.impl("linear_attention", linear_attention_with_torch);
}
TORCH_LIBRARY_IMPL(torchalgo, Autograd, m) {
  m.impl("attention", attention_autograd);
  m.impl("linear_attention", linear_attention_autograd);
}
// Under autocast each of PyTorch's ops chooses its type.
TORCH_LIBRARY_IMPL(torchalgo, AutocastCPU, m) {
  m.impl("attention", attention_with_torch);
  m.impl("linear_attention", linear_attention_with_torch);
}
TORCH_LIBRARY_IMPL(torchalgo, AutocastCUDA, m) {
  m.impl("attention", attention_with_torch);
  m.impl("linear_attention", linear_attention_with_torch);
}

}  // namespace
}  // namespace torchalgo
