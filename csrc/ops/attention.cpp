// SPDX-License-Identifier: BSD-3-Clause
// torchalgo::attention: softmax(scale * query * key^T + bias) * value, which PyTorch computes in
// five ops or more. csrc/simplify/attention.h puts it into graphs.

#include "cpu_algo/kernels/attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "provider/device.h"

namespace torchalgo {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Sizes = std::vector<std::int64_t>;

// The arguments of the op. Tensors are [n, heads, tokens, features], or [n, tokens, features] of
// one head.
struct Arguments {
  at::Tensor query, key, value;
  OptionalTensor bias;
  double scale = 1;
  at::IntArrayRef order;  // the dimensions of the result, the one with the largest stride first
};

// Returns `tensor` with its memory in the order of the result.
at::Tensor in_order(const at::Tensor& tensor, at::IntArrayRef order) {
  Sizes back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<std::int64_t>(i);
  return tensor.permute(order).contiguous().permute(back);
}

at::Tensor attend_with_torch(const Arguments& arguments) {
  at::Tensor scores = at::matmul(arguments.query, arguments.key.transpose(-2, -1));
  if (arguments.scale != 1) scores = at::mul(scores, arguments.scale);
  if (arguments.bias) scores = at::add(scores, *arguments.bias);
  return in_order(at::matmul(at::softmax(scores, -1), arguments.value), arguments.order);
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         !tensor.is_neg() && tensor.numel() > 0;
}

// Returns the sizes [n, heads, queries, keys] of the scores, or nullopt if the kernel cannot
// compute them.
std::optional<Sizes> score_sizes(const Arguments& arguments) {
  const at::Tensor &q = arguments.query, &k = arguments.key, &v = arguments.value;
  const std::int64_t rank = q.dim();
  if ((rank != 3 && rank != 4) || k.dim() != rank || v.dim() != rank) return std::nullopt;
  if (!is_plain(q) || !is_plain(k) || !is_plain(v)) return std::nullopt;
  if (q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2)) return std::nullopt;
  for (std::int64_t i = 0; i < rank - 2; ++i) {
    if (q.size(i) != k.size(i) || q.size(i) != v.size(i)) return std::nullopt;
  }
  Sizes sizes = {q.size(0), rank == 4 ? q.size(1) : 1, q.size(-2), k.size(-2)};
  if (!arguments.bias) return sizes;
  const at::Tensor& bias = *arguments.bias;
  if (!is_plain(bias) || bias.dim() > rank) return std::nullopt;
  for (std::int64_t i = 1; i <= bias.dim(); ++i) {
    const std::int64_t size = rank == 3 && i == 3 ? sizes[0] : sizes[4 - i];
    if (bias.size(-i) != 1 && bias.size(-i) != size) return std::nullopt;
  }
  return sizes;
}

kernels::HeadStrides strides_of(const at::Tensor& tensor) {
  const std::int64_t head = tensor.dim() == 4 ? tensor.stride(1) : 0;
  return {tensor.stride(0), head, tensor.stride(-2), tensor.stride(-1)};
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

at::Tensor attend_on_cpu(const Arguments& arguments) {
  const std::optional<Sizes> scores = score_sizes(arguments);
  if (!scores) return attend_with_torch(arguments);
  Sizes sizes = arguments.query.sizes().vec();
  sizes.back() = arguments.value.size(-1);
  const at::Tensor dst = empty_in_order(sizes, arguments.order);
  kernels::Attention attention;
  attention.q = arguments.query.const_data_ptr<float>();
  attention.k = arguments.key.const_data_ptr<float>();
  attention.v = arguments.value.const_data_ptr<float>();
  attention.dst = dst.mutable_data_ptr<float>();
  attention.q_strides = strides_of(arguments.query);
  attention.k_strides = strides_of(arguments.key);
  attention.v_strides = strides_of(arguments.value);
  attention.dst_strides = strides_of(dst);
  if (arguments.bias) {
    Sizes expanded = *scores;
    if (arguments.query.dim() == 3) expanded.erase(expanded.begin() + 1);
    const at::Tensor bias = arguments.bias->expand(expanded);
    attention.bias = bias.const_data_ptr<float>();
    attention.bias_strides = strides_of(bias);
  }
  attention.images = (*scores)[0];
  attention.heads = (*scores)[1];
  attention.queries = (*scores)[2];
  attention.keys = (*scores)[3];
  attention.depth = arguments.query.size(-1);
  attention.width = sizes.back();
  attention.scale = static_cast<float>(arguments.scale);
  const std::int64_t heads = attention.images * attention.heads;
  // Each task packs the keys and values of its head, so heads are divided only if there are few.
  constexpr std::int64_t kTasksPerThread = 2, kFewestQueries = 24;
  attention.parts =
      std::clamp<std::int64_t>(kTasksPerThread * at::get_num_threads() / heads, 1,
                               std::max<std::int64_t>(1, attention.queries / kFewestQueries));
  static const std::string isa = cpu_device().isa;  // it does not change
  static const auto scratch_bytes = TORCHALGO_PICK_KERNEL(isa, attention_scratch_bytes);
  static const auto run = TORCHALGO_PICK_KERNEL(isa, run_attention);
  constexpr std::int64_t kGrainProducts = 1 << 15;
  const std::int64_t tasks = heads * attention.parts;
  const std::int64_t products =
      attention.queries * attention.keys * (attention.depth + attention.width) / attention.parts;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainProducts / (products + 1));
  at::parallel_for(0, tasks, grain, [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor scratch = at::empty({scratch_bytes(attention)}, at::kByte);
    run(attention, begin, end, scratch.mutable_data_ptr());
  });
  return dst;
}

Arguments arguments_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const OptionalTensor& bias, std::optional<double> scale,
                       at::IntArrayRef order) {
  const auto rank = static_cast<std::size_t>(query.dim());
  Sizes sorted = order.vec();
  std::sort(sorted.begin(), sorted.end());
  bool is_permutation = sorted.size() == rank;
  for (std::size_t i = 0; is_permutation && i < rank; ++i)
    is_permutation = sorted[i] == static_cast<std::int64_t>(i);
  TORCHALGO_CHECK(is_permutation,
                  "TA4303 torchalgo::attention: the order of a result of rank {} needs each of its "
                  "dimensions once",
                  rank);
  TORCHALGO_CHECK(!bias || bias->dim() <= query.dim(),
                  "TA4303 torchalgo::attention: expected a bias of rank {} or less, got {}", rank,
                  bias->dim());
  const double own_scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));
  return {query, key, value, bias, scale.value_or(own_scale), order};
}

template <auto kAttend>
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const OptionalTensor& bias, std::optional<double> scale,
                     at::IntArrayRef order) {
  return kAttend(arguments_of(query, key, value, bias, scale, order));
}

bool needs_derivative(const at::Tensor& tensor) {
  return tensor._fw_grad(/*level=*/0).defined() ||
         (at::GradMode::is_enabled() && tensor.requires_grad());
}

// With derivatives PyTorch's ops compute it, which have them.
at::Tensor attention_autograd(const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const OptionalTensor& bias,
                              std::optional<double> scale, at::IntArrayRef order) {
  if (needs_derivative(query) || needs_derivative(key) || needs_derivative(value) ||
      (bias && needs_derivative(*bias))) {
    return attention<&attend_with_torch>(query, key, value, bias, scale, order);
  }
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("torchalgo::attention", "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const OptionalTensor&, std::optional<double>, at::IntArrayRef)>();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(query, key, value, bias, scale, order);
}

TORCH_LIBRARY_FRAGMENT(torchalgo, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, float? scale, int[] order) "
      "-> Tensor");
}
TORCH_LIBRARY_IMPL(torchalgo, CPU, m) { m.impl("attention", attention<&attend_on_cpu>); }
TORCH_LIBRARY_IMPL(torchalgo, CompositeExplicitAutograd, m) {
  m.impl("attention", attention<&attend_with_torch>);
}
TORCH_LIBRARY_IMPL(torchalgo, Autograd, m) { m.impl("attention", attention_autograd); }
// Under autocast each of PyTorch's ops chooses its type.
TORCH_LIBRARY_IMPL(torchalgo, AutocastCPU, m) {
  m.impl("attention", attention<&attend_with_torch>);
}
TORCH_LIBRARY_IMPL(torchalgo, AutocastCUDA, m) {
  m.impl("attention", attention<&attend_with_torch>);
}

}  // namespace
}  // namespace torchalgo
