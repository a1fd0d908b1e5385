// SPDX-License-Identifier: BSD-3-Clause
// torchalgo::attention: softmax(scale * query * key^T + bias) * value, which PyTorch computes in
// five ops or more. torchalgo::linear_attention has no softmax: see kernels/attention.h.
// csrc/simplify/attention.h puts both into graphs.

#include "cpu_algo/kernels/attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
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

// The tensors are [n, heads, tokens, features], or [n, tokens, features] of one head.
struct Operands {
  at::Tensor query, key, value;
  at::IntArrayRef order;  // the dimensions of the result, the one with the largest stride first
};

struct Arguments : Operands {
  OptionalTensor bias;
  double scale = 1;
};
struct LinearArguments : Operands {
  double epsilon = 0;
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

at::Tensor attend_with_torch(const LinearArguments& arguments) {
  const at::Tensor key = at::relu(arguments.key).transpose(-2, -1);
  const at::Tensor value = at::constant_pad_nd(arguments.value, {0, 1}, 1);
  const at::Tensor sums = at::matmul(at::relu(arguments.query), at::matmul(key, value));
  const std::int64_t width = arguments.value.size(-1);
  const at::Tensor divisors = at::add(sums.narrow(-1, width, 1), arguments.epsilon);
  return in_order(at::div(sums.narrow(-1, 0, width), divisors), arguments.order);
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         !tensor.is_neg() && tensor.numel() > 0;
}

// Returns true if the kernels can read the tensors, and their sizes fit each other.
bool are_plain(const Operands& operands) {
  const at::Tensor &q = operands.query, &k = operands.key, &v = operands.value;
  const std::int64_t rank = q.dim();
  if ((rank != 3 && rank != 4) || k.dim() != rank || v.dim() != rank) return false;
  if (!is_plain(q) || !is_plain(k) || !is_plain(v)) return false;
  if (q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2)) return false;
  for (std::int64_t i = 0; i < rank - 2; ++i) {
    if (q.size(i) != k.size(i) || q.size(i) != v.size(i)) return false;
  }
  return true;
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

// Returns a new tensor for the result.
at::Tensor empty_result(const Operands& operands) {
  Sizes sizes = operands.query.sizes().vec();
  sizes.back() = operands.value.size(-1);
  return empty_in_order(sizes, operands.order);
}

kernels::HeadMatrices matrices_of(const Operands& operands, const at::Tensor& dst) {
  kernels::HeadMatrices heads;
  heads.q = operands.query.const_data_ptr<float>();
  heads.k = operands.key.const_data_ptr<float>();
  heads.v = operands.value.const_data_ptr<float>();
  heads.dst = dst.mutable_data_ptr<float>();
  heads.q_strides = strides_of(operands.query);
  heads.k_strides = strides_of(operands.key);
  heads.v_strides = strides_of(operands.value);
  heads.dst_strides = strides_of(dst);
  heads.images = operands.query.size(0);
  heads.heads = operands.query.dim() == 4 ? operands.query.size(1) : 1;
  heads.queries = operands.query.size(-2);
  heads.keys = operands.key.size(-2);
  heads.depth = operands.query.size(-1);
  heads.width = operands.value.size(-1);
  return heads;
}

const std::string& kernel_isa() {
  static const std::string isa = cpu_device().isa;  // it does not change
  return isa;
}

// Runs a kernel's tasks, each of which has so many `products`.
template <class Attention>
void run_tasks(const Attention& attention, std::int64_t tasks, std::int64_t products,
               std::int64_t (*scratch_bytes)(const Attention&),
               void (*run)(const Attention&, std::int64_t, std::int64_t, void*)) {
  constexpr std::int64_t kGrainProducts = 1 << 15;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainProducts / (products + 1));
  at::parallel_for(0, tasks, grain, [&](std::int64_t begin, std::int64_t end) {
    const at::Tensor scratch = at::empty({scratch_bytes(attention)}, at::kByte);
    run(attention, begin, end, scratch.mutable_data_ptr());
  });
}

at::Tensor attend_on_cpu(const Arguments& arguments) {
  if (!are_plain(arguments)) return attend_with_torch(arguments);
  Sizes scores = arguments.query.sizes().vec();
  scores.back() = arguments.key.size(-2);
  const OptionalTensor& bias = arguments.bias;
  if (bias && (!is_plain(*bias) || !at::is_expandable_to(bias->sizes(), scores)))
    return attend_with_torch(arguments);
  const at::Tensor dst = empty_result(arguments);
  kernels::Attention attention{matrices_of(arguments, dst)};
  if (bias) {
    attention.bias = bias->const_data_ptr<float>();
    attention.bias_strides = strides_of(bias->expand(scores));
  }
  attention.scale = static_cast<float>(arguments.scale);
  const std::int64_t heads = attention.images * attention.heads;
  // Each task packs the keys and values of its head, so heads are divided only if there are few.
  constexpr std::int64_t kTasksPerThread = 2, kFewestQueries = 24;
  attention.parts =
      std::clamp<std::int64_t>(kTasksPerThread * at::get_num_threads() / heads, 1,
                               std::max<std::int64_t>(1, attention.queries / kFewestQueries));
  const std::int64_t products =
      attention.queries * attention.keys * (attention.depth + attention.width) / attention.parts;
  run_tasks(attention, heads * attention.parts, products,
            TORCHALGO_PICK_KERNEL(kernel_isa(), attention_scratch_bytes),
            TORCHALGO_PICK_KERNEL(kernel_isa(), run_attention));
  return dst;
}

at::Tensor attend_on_cpu(const LinearArguments& arguments) {
  if (!are_plain(arguments)) return attend_with_torch(arguments);
  const at::Tensor dst = empty_result(arguments);
  kernels::LinearAttention attention{matrices_of(arguments, dst)};
  attention.epsilon = static_cast<float>(arguments.epsilon);
  const std::int64_t products =
      (attention.queries + attention.keys) * attention.depth * (attention.width + 1);
  run_tasks(attention, attention.images * attention.heads, products,
            TORCHALGO_PICK_KERNEL(kernel_isa(), linear_attention_scratch_bytes),
            TORCHALGO_PICK_KERNEL(kernel_isa(), run_linear_attention));
  return dst;
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

Arguments arguments_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const OptionalTensor& bias, std::optional<double> scale,
                       at::IntArrayRef order) {
  check_order("attention", query.dim(), order);
  TORCHALGO_CHECK(!bias || bias->dim() <= query.dim(),
                  "TA4303 torchalgo::attention: expected a bias of rank {} or less, got {}",
                  query.dim(), bias->dim());
  const double own_scale = 1 / std::sqrt(static_cast<double>(query.size(-1)));
  return {{query, key, value, order}, bias, scale.value_or(own_scale)};
}

LinearArguments arguments_of(const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value, double epsilon, at::IntArrayRef order) {
  check_order("linear_attention", query.dim(), order);
  return {{query, key, value, order}, epsilon};
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const OptionalTensor& bias, std::optional<double> scale,
                     at::IntArrayRef order) {
  return attend_on_cpu(arguments_of(query, key, value, bias, scale, order));
}
at::Tensor attention_with_torch(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const OptionalTensor& bias,
                                std::optional<double> scale, at::IntArrayRef order) {
  return attend_with_torch(arguments_of(query, key, value, bias, scale, order));
}

at::Tensor linear_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            double epsilon, at::IntArrayRef order) {
  return attend_on_cpu(arguments_of(query, key, value, epsilon, order));
}
at::Tensor linear_attention_with_torch(const at::Tensor& query, const at::Tensor& key,
                                       const at::Tensor& value, double epsilon,
                                       at::IntArrayRef order) {
  return attend_with_torch(arguments_of(query, key, value, epsilon, order));
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
                              std::optional<double> scale, at::IntArrayRef order) {
  if (needs_derivative(query) || needs_derivative(key) || needs_derivative(value) ||
      needs_derivative(bias)) {
    return attention_with_torch(query, key, value, bias, scale, order);
  }
  static const auto op = find_op<decltype(attention)>("torchalgo::attention");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(query, key, value, bias, scale, order);
}
at::Tensor linear_attention_autograd(const at::Tensor& query, const at::Tensor& key,
                                     const at::Tensor& value, double epsilon,
                                     at::IntArrayRef order) {
  if (needs_derivative(query) || needs_derivative(key) || needs_derivative(value))
    return linear_attention_with_torch(query, key, value, epsilon, order);
  static const auto op = find_op<decltype(linear_attention)>("torchalgo::linear_attention");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(query, key, value, epsilon, order);
}

TORCH_LIBRARY_FRAGMENT(torchalgo, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, float? scale, int[] order) "
      "-> Tensor");
  m.def(
      "linear_attention(Tensor query, Tensor key, Tensor value, float epsilon, int[] order) "
      "-> Tensor");
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
