// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/attention.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

using Sizes = std::vector<std::int64_t>;

// The tensors of a problem: the sizes of all inputs, then those of the result.
struct Tensors {
  std::vector<Sizes> sizes;
  bool have_heads;  // they have a dimension of heads
};

Tensors tensors_of(const AttentionProblem& problem) {
  Tensors tensors = {input_sizes(problem), problem.heads > 0};
  tensors.sizes.push_back(result_sizes(problem));
  return tensors;
}

// Returns the strides of tensor `i`, whose last dimensions are rows and columns. A bias may have
// fewer dimensions, or some of size 1. Then all rows, heads or images read the same.
kernels::HeadStrides strides_of(const Tensors& tensors, const RunArgs& args, std::size_t i) {
  const Sizes& sizes = tensors.sizes[i];
  std::array<std::int64_t, 4> from_last = {};
  std::int64_t dense = 1;
  for (std::size_t turn = 0; turn < sizes.size(); ++turn) {
    const std::size_t dim = sizes.size() - 1 - turn;
    if (sizes[dim] > 1) from_last[turn] = args.strides.empty() ? dense : args.strides[i][dim];
    dense *= sizes[dim];
  }
  const auto [column, row, third, fourth] = from_last;
  if (!tensors.have_heads) return {third, 0, row, column};
  return {fourth, third, row, column};
}

void set_tensors(const Tensors& tensors, const RunArgs& args, kernels::HeadMatrices& call) {
  call.q = args.src[0];
  call.k = args.src[1];
  call.v = args.src[2];
  call.dst = args.dst;
  call.q_strides = strides_of(tensors, args, 0);
  call.k_strides = strides_of(tensors, args, 1);
  call.v_strides = strides_of(tensors, args, 2);
  call.dst_strides = strides_of(tensors, args, tensors.sizes.size() - 1);
}

void set_bias(const Tensors& tensors, const RunArgs& args, kernels::Attention& call) {
  if (args.src.size() < 4) return;
  call.bias = args.src[3];
  call.bias_strides = strides_of(tensors, args, 3);
}
void set_bias(const Tensors&, const RunArgs&, kernels::LinearAttention&) {}

// Binds a kernel whose `call` has the sizes. Each of its tasks has so many `products` and needs
// `scratch_bytes`. Each thread takes adjacent tasks, since those of one head share its packed keys
// and values.
template <class Call>
PlainKernel bind_tasks(const AttentionProblem& problem, const Call& call, std::int64_t tasks,
                       std::int64_t products, std::int64_t scratch_bytes, int most_threads,
                       void (*run)(const Call&, std::int64_t, std::int64_t, void*)) {
  constexpr std::int64_t kGrainProducts = 1 << 15;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainProducts / (products + 1));
  const std::int64_t slices =
      std::clamp<std::int64_t>((tasks + grain - 1) / grain, 1, std::max(1, most_threads));
  const auto run_all = [=, tensors = tensors_of(problem)](const RunArgs& args,
                                                          const Threads& threads) {
    Call own = call;
    set_tensors(tensors, args, own);
    set_bias(tensors, args, own);
    parallel_for(threads, slices, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slice = begin; slice < end; ++slice) {
        run(own, tasks * slice / slices, tasks * (slice + 1) / slices,
            static_cast<char*>(args.workspace) + slice * scratch_bytes);
      }
    });
  };
  return {.workspace_bytes = slices * scratch_bytes, .run = run_all, .takes_strides = true};
}

template <class Call>
Call call_of(const AttentionProblem& problem) {
  Call call;
  call.images = problem.n;
  call.heads = std::max<std::int64_t>(1, problem.heads);
  call.queries = problem.queries;
  call.keys = problem.keys;
  call.depth = problem.depth;
  call.width = problem.width;
  return call;
}

PlainKernel bind_softmax(const AttentionProblem& problem, const std::string& isa, int threads) {
  auto call = call_of<kernels::Attention>(problem);
  call.scale = static_cast<float>(scale_of(problem));
  const std::int64_t heads = call.images * call.heads;
  // Each task packs the keys and values of its head, so heads are divided only if there are few.
  constexpr std::int64_t kTasksPerThread = 2, kFewestQueries = 24;
  call.parts = std::clamp<std::int64_t>(kTasksPerThread * threads / heads, 1,
                                        std::max<std::int64_t>(1, call.queries / kFewestQueries));
  const std::int64_t products = call.queries * call.keys * (call.depth + call.width) / call.parts;
  return bind_tasks(problem, call, heads * call.parts, products,
                    TORCHALGO_PICK_KERNEL(isa, attention_scratch_bytes)(call), threads,
                    TORCHALGO_PICK_KERNEL(isa, run_attention));
}

PlainKernel bind_linear(const AttentionProblem& problem, const std::string& isa, int threads) {
  auto call = call_of<kernels::LinearAttention>(problem);
  call.epsilon = static_cast<float>(problem.epsilon);
  const std::int64_t products = (call.queries + call.keys) * call.depth * (call.width + 1);
  return bind_tasks(problem, call, call.images * call.heads, products,
                    TORCHALGO_PICK_KERNEL(isa, linear_attention_scratch_bytes)(call), threads,
                    TORCHALGO_PICK_KERNEL(isa, run_linear_attention));
}

PlainKernel bind_attention(const std::string& isa, const Problem& problem, const Primitive&,
                           const Device& device) {
  const auto& attention = std::get<AttentionProblem>(problem);
  PlainKernel kernel = attention.kind == AttentionKind::kLinear
                           ? bind_linear(attention, isa, device.threads)
                           : bind_softmax(attention, isa, device.threads);
  kernel.least_work = [=] { return direct_work(problem); };
  return kernel;
}

Offer offer(AttentionKind kind, std::string_view name, const std::string& isa,
            const Problem& problem, const Device& device) {
  const auto* attention = std::get_if<AttentionProblem>(&problem);
  if (attention == nullptr || attention->kind != kind) {
    return {{},
            kind == AttentionKind::kLinear ? "needs attention without softmax"
                                           : "needs attention with softmax"};
  }
  Offer offer = offer_f32(name, attention->dtype, {Layout::kNchw});
  for (Primitive& primitive : offer.primitives)
    primitive.workspace_bytes = bind_attention(isa, problem, primitive, device).workspace_bytes;
  return offer;
}

Algorithm make(AttentionKind kind, std::string_view name, const std::string& isa) {
  return {.name = name,
          .rounding = 1,
          .offer = std::bind_front(offer, kind, name, isa),
          .bind = std::bind_front(bind_attention, isa)};
}

}  // namespace

Algorithms attention(const std::string& isa) {
  return {make(AttentionKind::kSoftmax, "cpu.attention", isa),
          make(AttentionKind::kLinear, "cpu.linear_attention", isa)};
}

}  // namespace torchalgo::cpu
