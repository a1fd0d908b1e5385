// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/pooled_linear.h"
#include "cpu_algo/rows.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

// Weights that a thread should have at least: some 10 us of reading, or its start costs more than
// it saves.
constexpr std::int64_t kLeastWeights = 65536;

Offer offer_linear(const Problem& problem, const Device&) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr) return {{}, "needs a linear layer"};
  const auto form = as_bias_add_activation(linear->epilogue);
  if (!form || form->add) return {{}, "needs an epilogue bias, activation"};
  if (linear->n < 1 || linear->n > kMostLinearInputs) {
    return {{},
            fmt::format("reads weights for few inputs: needs a batch of 1 to {}, got {}",
                        kMostLinearInputs, linear->n)};
  }
  return offer_f32("cpu.linear", linear->dtype, {Layout::kNchw});
}

// The model's own tensors, as long as they are contiguous.
Packed pack_linear(const Problem&, const Primitive&, const Weights& weights) {
  return {weights.weights.contiguous(),
          weights.bias.defined() ? weights.bias.contiguous() : at::Tensor()};
}

}  // namespace

void run_linear(LinearKernel kernel, const kernels::Linear& linear, std::int64_t tasks,
                std::int64_t rows_per_task) {
  const std::int64_t floats_per_task = std::max<std::int64_t>(1, linear.c * rows_per_task);
  at::parallel_for(0, tasks, kLeastWeights / floats_per_task + 1,
                   [&](std::int64_t begin, std::int64_t end) { kernel(linear, begin, end); });
}

Algorithm linear(const std::string& isa) {
  Algorithm row;
  row.name = "cpu.linear";
  row.version = 2;
  row.offer = offer_linear;
  row.pack = pack_linear;
  row.packed_bytes = [](const Problem&, const Primitive&) { return std::int64_t{0}; };
  row.run = [kernel = TORCHALGO_PICK_KERNEL(isa, run_linear)](const Call& call) {
    const auto& problem = std::get<LinearProblem>(call.problem);
    const bool has_bias = has(problem.epilogue, PostOp::kBias);
    run_linear(kernel,
               {floats(call.src[0]), floats(call.packed[0]),
                has_bias ? floats(call.packed[1]) : nullptr, call.dst.mutable_data_ptr<float>(),
                problem.n, problem.c, problem.k, activation_of(problem.epilogue)},
               problem.k, 1);
    return call.dst;
  };
  row.packs_for_all_sizes = true;
  row.least_work = direct_work;
  return row;
}

}  // namespace torchalgo::cpu
