// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
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

// The variant that copies the weights, and the length of rows up to which that pays. From memory,
// and in the pages of 2 MiB that packed weights have, 960 columns come 1.4 to 2 times as fast, 2048
// 1.2 times; longer ones too, but VGG-16 would hold 494 MB twice for 3 % of its time.
constexpr const char* kPanels = "cpu.linear.panels";
constexpr std::int64_t kMostPanelColumns = 2048;

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
  Offer offer = offer_f32("cpu.linear", linear->dtype, {Layout::kNchw});
  if (offer.refusal.empty() && linear->c <= kMostPanelColumns)
    offer.primitives.push_back({kPanels, Layout::kNchw, Layout::kNchw});
  return offer;
}

bool has_panels(const Primitive& primitive) { return primitive.name == kPanels; }

// Panels, or the model's own tensors, as long as they are contiguous.
Packed pack_linear(const Problem&, const Primitive& primitive, const Weights& weights) {
  const at::Tensor bias = weights.bias.defined() ? weights.bias.contiguous() : at::Tensor();
  if (has_panels(primitive)) return {linear_panels(weights.weights), bias};
  return {weights.weights.contiguous(), bias};
}

std::int64_t packed_bytes_of_linear(const Problem& problem, const Primitive& primitive) {
  const auto& linear = std::get<LinearProblem>(problem);
  return has_panels(primitive) ? linear_panels_bytes(linear.k, linear.c) : 0;
}

}  // namespace

void run_linear(LinearKernel kernel, const kernels::Linear& linear, std::int64_t tasks,
                std::int64_t rows_per_task) {
  const std::int64_t floats_per_task = std::max<std::int64_t>(1, linear.c * rows_per_task);
  at::parallel_for(0, tasks, kLeastWeights / floats_per_task + 1,
                   [&](std::int64_t begin, std::int64_t end) { kernel(linear, begin, end); });
}

at::Tensor linear_panels(const at::Tensor& weights) {
  const std::int64_t k = weights.size(0), c = weights.size(1);
  const std::int64_t panels = linear_panel_count(k), blocks = channel_blocks(c);
  const at::Tensor padded =
      at::zeros({panels * kernels::kLinearPanel, blocks * 16}, weights.options());
  padded.narrow(0, 0, k).narrow(1, 0, c).copy_(weights);
  return padded.view({panels, kernels::kLinearPanel, blocks, 16}).transpose(1, 2).contiguous();
}

std::int64_t linear_panels_bytes(std::int64_t k, std::int64_t c) {
  return linear_panel_count(k) * kernels::kLinearPanel * channel_blocks(c) * 16 *
         std::int64_t{sizeof(float)};
}

Algorithm linear(const std::string& isa) {
  Algorithm row;
  row.name = "cpu.linear";
  row.version = 3;
  row.offer = offer_linear;
  row.pack = pack_linear;
  row.packed_bytes = packed_bytes_of_linear;
  row.run = [by_rows = TORCHALGO_PICK_KERNEL(isa, run_linear),
             by_panels = TORCHALGO_PICK_KERNEL(isa, run_linear_panels)](const Call& call) {
    const auto& problem = std::get<LinearProblem>(call.problem);
    const bool has_bias = has(problem.epilogue, PostOp::kBias);
    const kernels::Linear linear = {floats(call.src[0]),
                                    floats(call.packed[0]),
                                    has_bias ? floats(call.packed[1]) : nullptr,
                                    call.dst.mutable_data_ptr<float>(),
                                    problem.n,
                                    problem.c,
                                    problem.k,
                                    activation_of(problem.epilogue)};
    if (has_panels(call.primitive)) {
      run_linear(by_panels, linear, linear_panel_count(problem.k), kernels::kLinearPanel);
    } else {
      run_linear(by_rows, linear, problem.k, 1);
    }
    return call.dst;
  };
  row.packs_for_all_sizes = true;
  row.least_work = direct_work;
  return row;
}

}  // namespace torchalgo::cpu
