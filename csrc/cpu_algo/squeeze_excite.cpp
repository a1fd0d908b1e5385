// SPDX-License-Identifier: BSD-3-Clause
// Computes the average of each channel and then 1x1 convolutions of the averages: the factors of a
// squeeze-excite in one call. After the pooling an image is one pixel. A convolution is then the
// product of its weights with a vector.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/eltwise.h"
#include "cpu_algo/linear.h"
#include "cpu_algo/pool.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

using Round = decltype(&kernels::default_isa::round_to_bf16);

struct Kernels {
  PoolRun pool, average_of_bf16;
  LinearRun linear;
  Round round_to_bf16;
};

std::int64_t row_floats(Layout layout, std::int64_t c) {
  return is_blocked(layout) ? channel_blocks(c) * 16 : c;
}

// Returns the pooling of a chain. The layers after it are 1x1 convolutions.
const PoolProblem& pool_of(const ConvChainProblem& chain) {
  return std::get<PoolProblem>(chain.layers[0]);
}

std::vector<ConvProblem> convs_of(const ConvChainProblem& chain) {
  std::vector<ConvProblem> convs;
  for (std::size_t i = 1; i < chain.layers.size(); ++i)
    convs.push_back(std::get<ConvProblem>(chain.layers[i]));
  return convs;
}

// Returns the floats of one vector between two layers, per image. The size is padded to whole
// blocks, because the pooling writes whole blocks. There are two such vectors. A result of another
// type is a vector too, before it is rounded.
std::int64_t vector_floats(const ConvChainProblem& chain, Layout layout) {
  std::int64_t most = 0;
  for (const ConvProblem& conv : convs_of(chain))
    most = std::max(most, row_floats(Layout::kNChw16c, conv.c));
  if (is_typed(layout)) most = std::max(most, row_floats(layout, convs_of(chain).back().k));
  return most;
}

std::int64_t workspace_bytes(const ConvChainProblem& chain, Layout layout) {
  return 2 * pool_of(chain).n * vector_floats(chain, layout) * std::int64_t{sizeof(float)};
}

Offer offer_all(const Problem& problem, const Device&) {
  const auto* chain = std::get_if<ConvChainProblem>(&problem);
  if (chain == nullptr || !std::holds_alternative<PoolProblem>(chain->layers[0]))
    return {{}, "is a global average pooling with convolutions behind it"};
  for (const ConvProblem& conv : convs_of(*chain)) {
    if (std::string refusal = refuse_conv(conv); !refusal.empty()) return {{}, std::move(refusal)};
    if (!is_pointwise(conv)) return {{}, "needs 1x1 filters without stride, padding or groups"};
    if (has(conv.epilogue, PostOp::kAdd)) return {{}, "needs an epilogue bias, activation"};
  }
  Offer offer;
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c, Layout::kNhwcBf16}) {
    offer.primitives.push_back(
        {"cpu.squeeze_excite", layout, layout, workspace_bytes(*chain, layout)});
  }
  return offer;
}

Offer without_large_batch(Offer all, const Problem& problem) {
  if (!all.refusal.empty()) return all;
  const std::int64_t n = pool_of(std::get<ConvChainProblem>(problem)).n;
  if (n <= kMostLinearInputs) return all;
  return {{},
          fmt::format("reads weights for few inputs: needs a batch of 1 to {}, got {}",
                      kMostLinearInputs, n)};
}

// One entry per layer. The pooling has no weights, and biases are the model's own.
std::vector<PackedFloats> packed_of(const ConvChainProblem& chain) {
  std::vector<PackedFloats> packed(1);
  for (const ConvProblem& conv : convs_of(chain))
    packed.push_back({linear_panel_floats(conv.k, conv.c), 0});
  return packed;
}

void pack(const ConvChainProblem& chain, std::span<const LayerPointers> model,
          std::span<const PackedPointers> to) {
  for (std::size_t i = 1; i < chain.layers.size(); ++i) {
    const auto& conv = std::get<ConvProblem>(chain.layers[i]);
    pack_linear_panels(conv.k, conv.c, model[i].weights, to[i].weights);
  }
}

// The sizes of the pooling and of the layers after it. `run` sets the pointers.
struct Plan {
  PoolPlan pool;
  LinearRun linear = nullptr;
  Round round = nullptr;  // the last result; null if it has the type of the others
  std::vector<kernels::Linear> layers;
  std::int64_t n = 1;
  std::int64_t vectors = 0;               // floats of one of the two buffers
  std::int64_t src_row = 0, dst_row = 0;  // floats per image of the pooling's and the last result
};

Plan plan_chain(const Kernels& kernels, const ConvChainProblem& chain, Layout layout,
                std::int64_t threads) {
  const PoolProblem& pool = pool_of(chain);
  const std::vector<ConvProblem> convs = convs_of(chain);
  const bool is_bf16 = is_typed(layout);
  Plan plan = {plan_pool(is_bf16 ? kernels.average_of_bf16 : kernels.pool, pool, layout, threads),
               kernels.linear,
               is_bf16 ? kernels.round_to_bf16 : nullptr,
               {},
               pool.n};
  plan.vectors = pool.n * vector_floats(chain, layout);
  plan.src_row = row_floats(layout, pool.c);
  plan.dst_row = row_floats(layout, convs.back().k);
  for (const ConvProblem& conv : convs) {
    kernels::Linear layer = {nullptr, nullptr, nullptr, nullptr,
                             pool.n,  conv.c,  conv.k,  activation_of(conv.epilogue)};
    plan.layers.push_back(layer);
  }
  return plan;
}

void run(const Plan& plan, const RunArgs& args, const Threads& threads) {
  auto* src = static_cast<float*>(args.workspace);
  float* other = src + plan.vectors;
  run_pool(plan.pool, args.src[0], src, threads);
  std::int64_t src_row = plan.src_row;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const bool is_last = i + 1 == plan.layers.size();
    kernels::Linear linear = plan.layers[i];
    linear.src = src;
    linear.weights = args.weights[i + 1].weights;
    linear.bias = args.weights[i + 1].bias;
    linear.dst = is_last && plan.round == nullptr ? args.dst : other;
    const std::int64_t dst_row = is_last ? plan.dst_row : linear.k;
    const std::int64_t panels = linear_panel_count(linear.k);
    // If the images' vectors are adjacent in memory, one call reads the weights once for all
    // images.
    if (src_row == linear.c && dst_row == linear.k) {
      run_linear(plan.linear, linear, panels, kernels::kLinearPanel, threads);
    } else {
      linear.n = 1;
      for (std::int64_t image = 0; image < plan.n; ++image) {
        run_linear(plan.linear, linear, panels, kernels::kLinearPanel, threads);
        std::fill(linear.dst + linear.k, linear.dst + dst_row, 0.0F);
        linear.src += src_row;
        linear.dst += dst_row;
      }
    }
    std::swap(src, other);
    src_row = linear.k;
  }
  if (plan.round != nullptr)
    plan.round({src, nullptr, args.dst, kernels::Activation::kNone}, 0, plan.n * src_row);
}

PlainKernel bind(const Kernels& kernels, const Problem& problem, const Primitive& primitive,
                 const Device& device) {
  const auto& chain = std::get<ConvChainProblem>(problem);
  const Plan plan = plan_chain(kernels, chain, primitive.src, device.threads);
  return {.workspace_bytes = workspace_bytes(chain, primitive.src),
          .packed = packed_of(chain),
          .packing = to_string(primitive),
          .pack = [chain](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                          const Threads&) { pack(chain, model, to); },
          .run = [plan](const RunArgs& args, const Threads& threads) { run(plan, args, threads); },
          .least_work = [=] { return direct_work(problem); }};
}

}  // namespace

Algorithm squeeze_excite(const std::string& isa) {
  const Kernels kernels = {
      TORCHALGO_PICK_KERNEL(isa, run_pool), TORCHALGO_PICK_KERNEL(isa, run_average_of_bf16),
      TORCHALGO_PICK_KERNEL(isa, run_linear_panels), TORCHALGO_PICK_KERNEL(isa, round_to_bf16)};
  Algorithm algorithm = with_bf16_if_fast({.name = "cpu.squeeze_excite",
                                           .version = 4,
                                           .rounding = 1,
                                           .offer = offer_all,
                                           .bind = std::bind_front(bind, kernels)});
  algorithm.offer = [with_any_batch = std::move(algorithm.offer)](const Problem& problem,
                                                                  const Device& device) {
    return without_large_batch(with_any_batch(problem, device), problem);
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
