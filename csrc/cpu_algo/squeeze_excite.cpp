// SPDX-License-Identifier: BSD-3-Clause
// The average of each channel, then the 1x1 convolutions of it: a squeeze-excite's factors in one
// call. Behind the pooling an image is one pixel, and a convolution the product of its weights with
// a vector.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/pooled_linear.h"
#include "cpu_algo/rows.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

struct Kernels {
  PoolKernel pool;
  LinearKernel linear;
};

std::int64_t row_floats(Layout layout, std::int64_t c) {
  return is_blocked(layout) ? channel_blocks(c) * 16 : c;
}

// Of each of the two vectors per image that the layers pass on: padded, as the pooling writes one.
std::int64_t vector_floats(const ConvChainProblem& chain) {
  std::int64_t most = 0;
  for (const ConvProblem& conv : chain.convs)
    most = std::max(most, row_floats(Layout::kNChw16c, conv.c));
  return most;
}

Offer offer(const Problem& problem, const Device&) {
  const auto* chain = std::get_if<ConvChainProblem>(&problem);
  if (chain == nullptr || !chain->head || !std::holds_alternative<PoolProblem>(*chain->head))
    return {{}, "is a global average pooling with convolutions behind it"};
  for (const ConvProblem& conv : chain->convs) {
    if (std::string refusal = refuse_conv(conv); !refusal.empty()) return {{}, std::move(refusal)};
    if (!is_pointwise(conv)) return {{}, "needs 1x1 filters without stride, padding or groups"};
    if (has(conv.epilogue, PostOp::kAdd)) return {{}, "needs an epilogue bias, activation"};
  }
  const std::int64_t n = chain->convs[0].n;
  if (n > kMostLinearInputs) {
    return {{},
            fmt::format("reads weights for few inputs: needs a batch of 1 to {}, got {}",
                        kMostLinearInputs, n)};
  }
  Offer offer;
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c}) {
    Primitive primitive = {"cpu.squeeze_excite", layout, layout};
    primitive.workspace_bytes = 2 * n * vector_floats(*chain) * std::int64_t{sizeof(float)};
    offer.primitives.push_back(std::move(primitive));
  }
  return offer;
}

// The head's weights and bias, which it has none of, then those of each convolution.
constexpr std::size_t weights_at(std::size_t conv) { return 2 * conv + 2; }

Packed pack(const Problem& problem, const Primitive&, const Weights& weights) {
  std::vector<at::Tensor> tensors = tensors_of(weights);
  const auto& chain = std::get<ConvChainProblem>(problem);
  for (std::size_t i = 0; i < chain.convs.size(); ++i) {
    at::Tensor& matrix = tensors[weights_at(i)];
    matrix = linear_panels(matrix.reshape({chain.convs[i].k, chain.convs[i].c}));
    at::Tensor& bias = tensors[weights_at(i) + 1];
    if (bias.defined()) bias = bias.contiguous();
  }
  return tensors;
}

std::int64_t packed_bytes(const Problem& problem, const Primitive&) {
  std::int64_t bytes = 0;
  for (const ConvProblem& conv : std::get<ConvChainProblem>(problem).convs)
    bytes += linear_panels_bytes(conv.k, conv.c);
  return bytes;
}

at::Tensor run(const Kernels& kernels, const Call& call) {
  const auto& chain = std::get<ConvChainProblem>(call.problem);
  const Layout layout = call.primitive.src;
  const auto& pool = std::get<PoolProblem>(*chain.head);
  const std::int64_t floats_of_all = pool.n * vector_floats(chain);
  auto* src = static_cast<float*>(call.workspace);
  float* other = src + floats_of_all;
  run_pool(kernels.pool, pool, layout, floats(call.src[0]), src);
  std::int64_t src_row = row_floats(layout, pool.c);
  for (std::size_t i = 0; i < chain.convs.size(); ++i) {
    const ConvProblem& conv = chain.convs[i];
    const bool is_last = i + 1 == chain.convs.size();
    float* const dst = is_last ? call.dst.mutable_data_ptr<float>() : other;
    const std::int64_t dst_row = is_last ? row_floats(layout, conv.k) : conv.k;
    const at::Tensor& bias = call.packed[weights_at(i) + 1];
    kernels::Linear linear = {src,
                              floats(call.packed[weights_at(i)]),
                              bias.defined() ? floats(bias) : nullptr,
                              dst,
                              pool.n,
                              conv.c,
                              conv.k,
                              activation_of(conv.epilogue)};
    const std::int64_t panels = linear_panel_count(conv.k);
    // Images that lie side by side share the reading of the weights.
    if (src_row == conv.c && dst_row == conv.k) {
      run_linear(kernels.linear, linear, panels, kernels::kLinearPanel);
    } else {
      linear.n = 1;
      for (std::int64_t image = 0; image < pool.n; ++image) {
        run_linear(kernels.linear, linear, panels, kernels::kLinearPanel);
        std::fill(linear.dst + conv.k, linear.dst + dst_row, 0.0F);
        linear.src += src_row;
        linear.dst += dst_row;
      }
    }
    std::swap(src, other);
    src_row = conv.k;
  }
  return call.dst;
}

}  // namespace

Algorithm squeeze_excite(const std::string& isa) {
  const Kernels kernels = {TORCHALGO_PICK_KERNEL(isa, run_pool),
                           TORCHALGO_PICK_KERNEL(isa, run_linear_panels)};
  Algorithm algorithm;
  algorithm.name = "cpu.squeeze_excite";
  algorithm.version = 3;
  algorithm.offer = offer;
  algorithm.pack = pack;
  algorithm.packed_bytes = packed_bytes;
  algorithm.run = [kernels](const Call& call) { return run(kernels, call); };
  algorithm.packs_for_all_sizes = true;
  algorithm.least_work = direct_work;
  return algorithm;
}

}  // namespace torchalgo::cpu
