// SPDX-License-Identifier: BSD-3-Clause
// Computes a 1x1 convolution of act(x * scale + shift). The scale is a batch norm, as in DenseNet,
// or the factors of a squeeze-excite. The work goes block of pixels by block of pixels, so that the
// tensor between the two operations stays in the cache.

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/conv_gemm.h"
#include "cpu_algo/kernels/scale_shift.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

using kernels::ConvGemm;
using kernels::ScaleShift;

constexpr std::int64_t kFloatBytes = sizeof(float);
constexpr std::string_view kName = "cpu.scaled_conv1x1";
constexpr std::string_view kStrassenName = "cpu.scaled_conv1x1.strassen";

// Returns the convolution of a chain. The layer before it is a scale-shift or a product.
const ConvProblem& conv_of(const ConvChainProblem& chain) {
  return std::get<ConvProblem>(chain.layers[1]);
}

// Returns why the algorithm cannot run `problem`, or an empty string.
std::string refuse(const Problem& problem) {
  const auto* chain = std::get_if<ConvChainProblem>(&problem);
  if (chain == nullptr || std::holds_alternative<PoolProblem>(chain->layers[0]) ||
      std::holds_alternative<ConvProblem>(chain->layers[0]))
    return "is a convolution of what is scaled first";
  if (chain->layers.size() != 2) return "needs one convolution";
  const ConvProblem& conv = conv_of(*chain);
  if (std::string refusal = refuse_conv(conv); !refusal.empty()) return refusal;
  if (!is_pointwise(conv)) return "needs a 1x1 filter without stride, padding or groups";
  if (!only_activation(epilogue_of(chain->layers[0])))
    return "needs at most one activation behind the scale";
  return {};
}

// The sizes of the call. Each image is cut into blocks of pixels.
struct Plan {
  ConvGemm gemm = {};  // of a block; its tensors are set in the run
  ScaleShift scale = {};
  std::int64_t images = 1, pixels = 1, blocks = 1;  // blocks per image
  std::int64_t planes = 1, lanes = 16;              // of the source: 16 channels each, or all
  std::int64_t src_image = 0, dst_image = 0, factors = 0;  // floats; factors: of an image's scale
  std::int64_t block_floats = 0, gemm_bytes = 0;
};

std::int64_t slice_bytes(const Plan& plan) {
  return (plan.block_floats + 15) / 16 * 16 * kFloatBytes + plan.gemm_bytes;
}

std::int64_t begin_of(const Plan& plan, std::int64_t block) {
  return plan.pixels * block / plan.blocks;
}

// Returns the matrix product for pixels [begin, begin + count) of an image.
ConvGemm part_of(const Plan& plan, std::int64_t begin, std::int64_t count) {
  ConvGemm part = plan.gemm;
  part.p = part.h = 1;
  part.q = part.w = count;
  if (plan.planes > 1) part.src_plane = count * plan.lanes;
  part.dst += begin * part.dst_pixel;
  if (part.residual != nullptr) part.residual += begin * part.dst_pixel;
  return part;
}

Plan plan_scaled(const ConvChainProblem& chain, const Primitive& primitive,
                 const ConvGemmBuild& build, std::int64_t threads) {
  const ConvProblem& conv = conv_of(chain);
  const bool is_nhwc = primitive.src == Layout::kNhwc;
  Plan plan;
  plan.gemm = plan_part(conv, primitive.src, primitive.dst, build, primitive.name == kStrassenName);
  plan.images = conv.n;
  plan.pixels = conv.h * conv.w;
  plan.lanes = is_nhwc ? conv.c : 16;
  plan.planes = is_nhwc ? 1 : channel_blocks(conv.c);
  plan.src_image = plan.gemm.src_image;
  plan.dst_image = plan.gemm.dst_image;
  plan.factors = plan.planes * plan.lanes;
  const std::int64_t pixel = plan.planes * plan.lanes;
  const std::int64_t wanted = tasks_for(threads, plan.pixels / fewest_pixels(build));
  const std::int64_t least = plan.images < threads ? std::min(wanted, plan.pixels) : 1;
  plan.blocks =
      std::clamp<std::int64_t>(ceil_div(pixel * plan.pixels, kCachedFloats), least, plan.pixels);
  const std::int64_t most = ceil_div(plan.pixels, plan.blocks);
  plan.block_floats = pixel * most;
  ConvGemm part = part_of(plan, 0, most);
  set_conv_gemm_blocks(part);
  plan.gemm.block_planes = part.block_planes;
  plan.gemm_bytes = build.scratch_bytes(part_of(plan, 0, most));
  plan.scale.lanes = plan.lanes;
  plan.scale.periods = 1;
  const auto activation = only_activation(epilogue_of(chain.layers[0]));
  TORCHALGO_ASSERT(activation.has_value());
  plan.scale.activation = *activation;
  return plan;
}

struct Kernels {
  ConvGemmBuild gemm;
  decltype(&kernels::default_isa::run_scale_shift) scale;
};

void run_block(const Kernels& kernels, const Plan& plan, std::int64_t image, std::int64_t block,
               const float* factors, float* scaled, void* scratch) {
  const std::int64_t begin = begin_of(plan, block);
  const std::int64_t count = begin_of(plan, block + 1) - begin;
  ScaleShift part = plan.scale;
  part.pixels = count;
  for (std::int64_t plane = 0; plane < plan.planes; ++plane) {
    part.src = plan.scale.src + image * plan.src_image + (plane * plan.pixels + begin) * plan.lanes;
    part.scale = factors + plane * plan.lanes;
    if (plan.scale.shift != nullptr) part.shift = plan.scale.shift + plane * plan.lanes;
    part.dst = scaled + plane * count * plan.lanes;
    kernels.scale(part, 0, count);
  }
  ConvGemm gemm = part_of(plan, begin, count);
  gemm.src = scaled;
  gemm.dst += image * plan.dst_image;
  if (gemm.residual != nullptr) gemm.residual += image * plan.dst_image;
  kernels.gemm.run(gemm, 0, conv_gemm_tasks(gemm), scratch);
}

void run(const Kernels& kernels, const Plan& sizes, bool is_product, std::int64_t slices,
         const RunArgs& args, const Threads& threads) {
  Plan plan = sizes;
  plan.scale.src = args.src[0];
  const auto& [scale, shift] = args.weights[0];
  if (!is_product) plan.scale.shift = shift;
  const float* const factors = is_product ? args.src[1] : scale;
  plan.gemm.weights = args.weights[1].weights;
  plan.gemm.bias = args.weights[1].bias;
  plan.gemm.residual = args.residual;
  plan.gemm.dst = args.dst;
  const std::int64_t bytes = slice_bytes(plan);
  auto* workspace = static_cast<char*>(args.workspace);
  run_in_slices(threads, plan.images * plan.blocks, slices,
                [&](const auto& next, std::int64_t slice) {
                  char* const memory = workspace + slice * bytes;
                  void* const scratch = memory + bytes - plan.gemm_bytes;
                  for (std::int64_t task = next(); task >= 0; task = next()) {
                    const std::int64_t image = task / plan.blocks;
                    run_block(kernels, plan, image, task % plan.blocks,
                              is_product ? factors + image * plan.factors : factors,
                              reinterpret_cast<float*>(memory), scratch);
                  }
                });
}

Offer offer(const Kernels& kernels, const Problem& problem, const Device& device) {
  if (std::string refusal = refuse(problem); !refusal.empty()) return {{}, std::move(refusal)};
  const auto& chain = std::get<ConvChainProblem>(problem);
  Offer offer;
  for (const Layout src : {Layout::kNChw16c, Layout::kNhwc}) {
    for (const Layout dst : {Layout::kNChw16c, Layout::kNhwc}) {
      for (const std::string_view name : {kName, kStrassenName}) {
        Primitive primitive = {std::string(name), src, dst};
        if (name == kStrassenName && !can_strassen(conv_of(chain), src, dst)) continue;
        const Plan plan = plan_scaled(chain, primitive, kernels.gemm, device.threads);
        primitive.workspace_bytes = slice_bytes(plan) * device.threads;
        offer.primitives.push_back(std::move(primitive));
      }
    }
  }
  return offer;
}

PlainKernel bind(const Kernels& kernels, const Problem& problem, const Primitive& primitive,
                 const Device& device) {
  const auto& chain = std::get<ConvChainProblem>(problem);
  const ConvProblem conv = conv_of(chain);
  const bool is_product = std::holds_alternative<EltwiseProblem>(chain.layers[0]);
  const std::int64_t slices = device.threads;
  Plan plan = plan_scaled(chain, primitive, kernels.gemm, slices);
  plan.gemm.prefetch = packed_floats(plan.gemm) > kCachedFloats;
  // Scale and shift have zeros in the pad lanes. In a product the scale is an input.
  const std::int64_t factors = is_product ? 0 : plan.factors;
  const std::int64_t columns = channel_blocks(conv.k) * 16;
  return {
      .workspace_bytes = slice_bytes(plan) * slices,
      .packed = {{factors, factors}, {packed_floats(plan.gemm), columns}},
      .packing = to_string(primitive),
      .pack =
          [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
              const Threads& threads) {
            if (!is_product) {
              pad_bias(model[0].weights, conv.c, to[0].weights, factors);
              pad_bias(model[0].bias, conv.c, to[0].bias, factors);
            }
            pack_conv_gemm(plan.gemm, conv, model[1].weights, to[1].weights, threads);
            pad_bias(model[1].bias, conv.k, to[1].bias, columns);
          },
      .run = [=](const RunArgs& args,
                 const Threads& threads) { run(kernels, plan, is_product, slices, args, threads); },
      .least_work =
          [=, strassen = primitive.name == kStrassenName] {
            return strassen ? strassen_work(problem) : direct_work(problem);
          }};
}

}  // namespace

Algorithm scaled_conv1x1(const std::string& isa) {
  const Kernels kernels = {conv_gemm_build(isa), TORCHALGO_PICK_KERNEL(isa, run_scale_shift)};
  return {.name = kName,
          .version = 3,
          .rounding = 1,
          .offer = std::bind_front(offer, kernels),
          .bind = std::bind_front(bind, kernels)};
}

}  // namespace torchalgo::cpu
