// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/linear.h"

#include <fmt/format.h>

#include <algorithm>

#include "cpu_algo/conv.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kBlock = 16;
// Weights that a thread should have at least: some 10 us of reading, or its start costs more than
// it saves.
constexpr std::int64_t kLeastWeights = 65536;

}  // namespace

void run_linear(LinearRun run, const kernels::Linear& linear, std::int64_t tasks,
                std::int64_t rows_per_task, const Threads& threads) {
  const std::int64_t floats_per_task = std::max<std::int64_t>(1, linear.c * rows_per_task);
  parallel_for(threads, tasks, kLeastWeights / floats_per_task + 1,
               [&](std::int64_t begin, std::int64_t end) { run(linear, begin, end); });
}

void pack_linear_panels(std::int64_t k, std::int64_t c, const float* weights, float* panels) {
  constexpr std::int64_t kRows = kernels::kLinearPanel;
  const std::int64_t blocks = channel_blocks(c);
  std::fill_n(panels, linear_panel_floats(k, c), 0.0F);
  for (std::int64_t row = 0; row < k; ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t first = block * kBlock;
      std::copy(weights + row * c + first, weights + row * c + std::min(first + kBlock, c),
                panels + ((row / kRows * blocks + block) * kRows + row % kRows) * kBlock);
    }
  }
}

std::int64_t linear_panel_floats(std::int64_t k, std::int64_t c) {
  return linear_panel_count(k) * kernels::kLinearPanel * channel_blocks(c) * kBlock;
}

namespace {

PlainKernel make_kernel(const LinearProblem& linear, bool has_panels, std::string_view isa) {
  const std::int64_t c = linear.c, k = linear.k;
  const kernels::Linear sizes = {nullptr,  nullptr, nullptr, nullptr,
                                 linear.n, c,       k,       activation_of(linear.epilogue)};
  const LinearRun run = has_panels ? TORCHALGO_PICK_KERNEL(isa, run_linear_panels)
                                   : TORCHALGO_PICK_KERNEL(isa, run_linear);
  const std::int64_t rows_per_task = has_panels ? kernels::kLinearPanel : 1;
  const std::int64_t tasks = has_panels ? linear_panel_count(k) : k;
  PlainKernel kernel;
  if (has_panels) {
    kernel.packed = {{linear_panel_floats(k, c), 0}};
    kernel.packing = "panels";
    kernel.pack = [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                      const Threads&) {
      pack_linear_panels(k, c, model[0].weights, to[0].weights);
    };
  }
  kernel.run = [=](const RunArgs& args, const Threads& threads) {
    kernels::Linear call = sizes;
    call.src = args.src[0];
    call.weights = args.weights[0].weights;
    call.bias = args.weights[0].bias;
    call.dst = args.dst;
    run_linear(run, call, tasks, rows_per_task, threads);
  };
  return kernel;
}

// The name of the variant that copies the weights, and the most columns for which the copy pays
// off. Packed weights lie in pages of 2 MiB. Read from memory, rows of 960 columns are 1.4 to 2
// times as fast, rows of 2048 columns 1.2 times. Longer rows gain too, but VGG-16 would hold 494 MB
// twice to save 3 % of its time.
constexpr const char* kPanels = "cpu.linear.panels";
constexpr std::int64_t kMostPanelColumns = 2048;

Offer offer_all(const Problem& problem, const Device&) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr) return {{}, "needs a linear layer"};
  const auto form = as_bias_add_activation(linear->epilogue);
  if (!form || form->add) return {{}, "needs an epilogue bias, activation"};
  Offer offer = offer_f32("cpu.linear", linear->dtype, {Layout::kNchw});
  if (offer.refusal.empty() && linear->c <= kMostPanelColumns)
    offer.primitives.push_back({kPanels, Layout::kNchw, Layout::kNchw});
  return offer;
}

Offer offer(const Problem& problem, const Device& device) {
  const auto* linear = std::get_if<LinearProblem>(&problem);
  if (linear == nullptr || (linear->n >= 1 && linear->n <= kMostLinearInputs))
    return offer_all(problem, device);
  return {{},
          fmt::format("reads weights for few inputs: needs a batch of 1 to {}, got {}",
                      kMostLinearInputs, linear->n)};
}

}  // namespace

Algorithm linear(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = "cpu.linear";
  algorithm.rounding = 1;
  algorithm.version = 3;
  algorithm.offer = offer;
  algorithm.offer_all = offer_all;
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device&) {
    const auto& linear = std::get<LinearProblem>(problem);
    PlainKernel kernel = make_kernel(linear, primitive.name == kPanels, isa);
    kernel.least_work = [=] { return direct_work(problem); };
    return kernel;
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
