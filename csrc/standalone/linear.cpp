// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/linear.h"

#include <algorithm>

#include "standalone/conv.h"

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

PlainKernel bind_linear(const LinearProblem& linear, bool has_panels, std::string_view isa) {
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

}  // namespace torchalgo::cpu
