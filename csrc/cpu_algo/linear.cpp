// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/pooled_linear.h"
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
  const at::Tensor padded = weights.new_zeros({panels * kernels::kLinearPanel, blocks * 16});
  padded.narrow(0, 0, k).narrow(1, 0, c).copy_(weights);
  return padded.view({panels, kernels::kLinearPanel, blocks, 16}).transpose(1, 2).contiguous();
}

std::int64_t linear_panels_bytes(std::int64_t k, std::int64_t c) {
  return linear_panel_count(k) * kernels::kLinearPanel * channel_blocks(c) * 16 *
         std::int64_t{sizeof(float)};
}

namespace {

Kernel prepare_linear(LinearKernel by_rows, LinearKernel by_panels, const Problem& problem,
                      const Primitive& primitive) {
  const auto& linear = std::get<LinearProblem>(problem);
  const bool is_panels = has_panels(primitive);
  const LinearKernel run = is_panels ? by_panels : by_rows;
  const std::int64_t tasks = is_panels ? linear_panel_count(linear.k) : linear.k;
  const std::int64_t rows_per_task = is_panels ? kernels::kLinearPanel : 1;
  const bool has_bias = has(linear.epilogue, PostOp::kBias);
  const kernels::Linear sizes = {nullptr,  nullptr,  nullptr,  nullptr,
                                 linear.n, linear.c, linear.k, activation_of(linear.epilogue)};
  return {.problem = problem,
          .primitive = primitive,
          .run =
              [=](const KernelArgs& args) {
                kernels::Linear part = sizes;
                part.src = floats(args.src[0]);
                part.weights = floats(args.packed[0]);
                if (has_bias) part.bias = floats(args.packed[1]);
                part.dst = args.dst.mutable_data_ptr<float>();
                run_linear(run, part, tasks, rows_per_task);
                return args.dst;
              },
          // Panels, or the model's own tensors, as long as they are contiguous.
          .pack = [is_panels](const Weights& weights) -> Packed {
            const at::Tensor bias =
                weights[0].bias.defined() ? weights[0].bias.contiguous() : at::Tensor();
            if (is_panels) return {linear_panels(weights[0].weights), bias};
            return {weights[0].weights.contiguous(), bias};
          },
          .packed_bytes =
              [=] { return is_panels ? linear_panels_bytes(sizes.k, sizes.c) : std::int64_t{0}; },
          .least_work = [=] { return direct_work(problem); }};
}

}  // namespace

Algorithm linear(const std::string& isa) {
  Algorithm row;
  row.name = "cpu.linear";
  row.rounding = 1;
  row.version = 3;
  row.offer = offer_linear;
  row.prepare = [by_rows = TORCHALGO_PICK_KERNEL(isa, run_linear),
                 by_panels = TORCHALGO_PICK_KERNEL(isa, run_linear_panels)](
                    const Problem& problem, const Primitive& primitive, const Device&) {
    return prepare_linear(by_rows, by_panels, problem, primitive);
  };
  row.packs_for_all_sizes = true;
  return row;
}

}  // namespace torchalgo::cpu
