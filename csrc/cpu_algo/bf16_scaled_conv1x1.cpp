// SPDX-License-Identifier: BSD-3-Clause
// cpu.scaled_conv1x1 in bf16: block of pixels by block of pixels, so that the tensor between the
// scale and the convolution stays in L2.
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cpu_algo/bf16_conv.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/scale_shift.h"
#include "cpu_algo/rounding.h"
#include "cpu_algo/same_layout.h"
#include "cpu_algo/scaled_conv1x1.h"

namespace torchalgo::cpu {
namespace {

using kernels::Bf16Conv;
using kernels::ScaleShift;

constexpr const char* kName = "cpu.bf16_scaled_conv1x1";
// Of a scaled block. Weights and results need the rest of L2.
constexpr std::int64_t kBlockBytes = 128 * 1024;
constexpr std::int64_t kFewestPixels = 28;  // of a block: two tiles

struct Plan {
  Bf16Plan conv;
  ScaleShift scale = {};
  std::int64_t images = 1, pixels = 1, blocks = 1;  // blocks per image
};

std::int64_t slice_bytes(const Plan& plan) {
  return ceil_div(ceil_div(plan.pixels, plan.blocks) * plan.conv.conv.c * 2, 64) * 64;
}

Plan plan_scaled(const ConvChainProblem& chain, const Primitive& primitive, std::int64_t threads) {
  const auto& conv = std::get<ConvProblem>(chain.layers[1]);
  Plan plan;
  plan.conv = plan_bf16_conv(conv, {kName, Layout::kNhwcBf16, primitive.dst}, 1);
  plan.images = conv.n;
  plan.pixels = conv.h * conv.w;
  const std::int64_t wanted = tasks_for(threads, plan.pixels / kFewestPixels);
  const std::int64_t least = plan.images < threads ? std::min(wanted, plan.pixels) : 1;
  plan.blocks =
      std::clamp<std::int64_t>(ceil_div(conv.c * plan.pixels * 2, kBlockBytes), least, plan.pixels);
  plan.scale.lanes = conv.c;
  plan.scale.periods = 1;
  const auto activation = only_activation(epilogue_of(chain.layers[0]));
  TORCHALGO_ASSERT(activation.has_value());
  plan.scale.activation = *activation;
  return plan;
}

struct Kernels {
  RunBf16Conv conv;
  decltype(&kernels::default_isa::run_scale_shift_bf16) scale;
};

// Scales pixels [begin, end) of all images into `scaled`, and multiplies them.
void run_pixels(const Kernels& kernels, ScaleShift scale, Bf16Conv conv, std::int64_t begin,
                std::int64_t end, float* scaled) {
  // The kernel counts in elements of bf16.
  scale.src = reinterpret_cast<const float*>(as_bf16(scale.src) + begin * conv.c);
  scale.dst = scaled;
  scale.pixels = end - begin;
  kernels.scale(scale, 0, end - begin);
  const std::int64_t bytes = begin * conv.k * (conv.is_dst_f32 ? 4 : 2);
  conv.src = scaled;
  conv.dst = static_cast<char*>(conv.dst) + bytes;
  if (conv.residual != nullptr) conv.residual = static_cast<const char*>(conv.residual) + bytes;
  set_pixels(conv, end - begin);
  std::int64_t band = -1;
  kernels.conv(conv, 0, nullptr, band);
}

void run(const Kernels& kernels, const Plan& plan, bool is_product, std::int64_t slices,
         const RunArgs& args, const Threads& threads) {
  Bf16Conv conv = plan.conv.conv;
  conv.offsets = plan.conv.offsets.data();
  conv.weights = as_bf16(args.weights[1].weights);
  conv.bias = args.weights[1].bias;
  conv.residual = args.residual;
  conv.dst = args.dst;
  ScaleShift scale = plan.scale;
  scale.src = args.src[0];
  scale.scale = is_product ? args.src[1] : args.weights[0].weights;
  if (!is_product) scale.shift = args.weights[0].bias;
  auto* const workspace = static_cast<char*>(args.workspace);
  const std::int64_t bytes = slice_bytes(plan);
  run_in_slices(
      threads, plan.images * plan.blocks, slices, [&](const auto& next, std::int64_t slice) {
        auto* const scaled = reinterpret_cast<float*>(workspace + slice * bytes);
        for (std::int64_t task = next(); task >= 0; task = next()) {
          const std::int64_t image = task / plan.blocks, block = task % plan.blocks;
          ScaleShift own = scale;
          if (is_product) {
            own.scale = reinterpret_cast<const float*>(as_bf16(scale.scale) + image * conv.c);
          }
          const std::int64_t first = image * plan.pixels;
          run_pixels(kernels, own, conv, first + plan.pixels * block / plan.blocks,
                     first + plan.pixels * (block + 1) / plan.blocks, scaled);
        }
      });
}

Offer offer_all(const Problem& problem, const Device& device) {
  if (std::string refusal = refuse_scaled_conv1x1(problem); !refusal.empty())
    return {{}, std::move(refusal)};
  const auto& chain = std::get<ConvChainProblem>(problem);
  Offer offer;
  for (const Layout dst : {Layout::kNhwcBf16, Layout::kNhwc}) {
    Primitive primitive = {kName, Layout::kNhwcBf16, dst};
    const Plan plan = plan_scaled(chain, primitive, device.threads);
    if (plan.conv.conv.source != Bf16Conv::kImage)
      return {{}, "needs channels with an even divisor near 32"};
    primitive.workspace_bytes = slice_bytes(plan) * device.threads;
    offer.primitives.push_back(std::move(primitive));
  }
  return offer;
}

PlainKernel bind(const std::string& isa, const Problem& problem, const Primitive& primitive,
                 const Device& device) {
  const auto& chain = std::get<ConvChainProblem>(problem);
  const auto& conv = std::get<ConvProblem>(chain.layers[1]);
  const bool is_product = std::holds_alternative<EltwiseProblem>(chain.layers[0]);
  const std::string_view bf16_isa = bf16_isa_beside(isa, device);
  const Kernels kernels = {pick_bf16_conv(isa, device),
                           is_product
                               ? TORCHALGO_PICK_BF16_KERNEL(bf16_isa, isa, run_channelwise_bf16)
                               : TORCHALGO_PICK_BF16_KERNEL(bf16_isa, isa, run_scale_shift_bf16)};
  const std::int64_t slices = device.threads;
  const Plan plan = plan_scaled(chain, primitive, slices);
  const Bf16Conv& sizes = plan.conv.conv;
  const std::int64_t factors = is_product ? 0 : conv.c;  // those of a product are an input
  const std::int64_t columns = bf16_conv_blocks(sizes) * 32;
  return {
      .workspace_bytes = slice_bytes(plan) * slices,
      .packed = {{factors, factors}, {bf16_conv_packed_elements(sizes) / 2, columns}},
      .packing = to_string(primitive),
      .pack =
          [=, c = conv.c, k = conv.k](std::span<const LayerPointers> model,
                                      std::span<const PackedPointers> to, const Threads& threads) {
            if (!is_product) {
              pad_bias(model[0].weights, c, to[0].weights, factors);
              pad_bias(model[0].bias, c, to[0].bias, factors);
            }
            pack_bf16_weights(plan.conv, model[1].weights, as_bf16(to[1].weights), threads);
            pad_bias(model[1].bias, k, to[1].bias, columns);
          },
      .run =
          [=](const RunArgs& args, const Threads& threads) {
            run(kernels, plan, is_product, slices, args, threads);
          }};
}

}  // namespace

Algorithm bf16_scaled_conv1x1(const std::string& isa) {
  return with_bf16_if_fast(
      {.name = kName, .rounding = 1, .offer = offer_all, .bind = std::bind_front(bind, isa)});
}

}  // namespace torchalgo::cpu
