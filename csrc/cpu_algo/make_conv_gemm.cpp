// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/make_conv_gemm.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "standalone/conv.h"
#include "standalone/conv_gemm.h"

namespace torchalgo::cpu {
namespace {

// Returns the names of the algorithm and of its variants for this problem.
std::vector<std::string> names_of(const ConvGemmAlgorithm& own, const ConvProblem& conv,
                                  const ConvGemmBuild& build) {
  std::vector<std::string> names = {std::string(own.name)};
  if (!build.has_wide_registers) return names;
  const std::int64_t blocks = blocks_to_cut(conv, build.strassen);
  for (const int width : own.widths) {
    const std::int64_t widest = ceil_div(blocks, ceil_div(blocks, width));
    if (widest == width && width != default_panel_blocks(blocks, build))
      names.push_back(fmt::format("{}.b{}", own.name, width));
  }
  return names;
}

// Returns the blocks per panel that the variant names, for example 3 for ".b3".
int width_of(const Primitive& primitive, std::int64_t blocks, const ConvGemmBuild& build) {
  const std::string_view name = primitive.name;
  const std::string_view variant = name.substr(name.rfind('.'));
  if (variant.size() != 3 || variant[1] != 'b') return default_panel_blocks(blocks, build);
  const int width = variant[2] - '0';
  TORCHALGO_ASSERT(width >= 1 && width <= kernels::kMaxTileBlocks);
  return width;
}

ConvGemmVariant variant_of(const Primitive& primitive, const ConvProblem& conv,
                           const ConvGemmBuild& build) {
  const int width = width_of(primitive, blocks_to_cut(conv, build.strassen), build);
  return {primitive.src, primitive.dst, width, build};
}

PlainKernel bind(const ConvGemmBuild& build, const Problem& problem, const Primitive& primitive,
                 const Device& device) {
  const auto& conv = std::get<ConvProblem>(problem);
  PlainKernel kernel = bind_conv_gemm(variant_of(primitive, conv, build), conv, device.threads);
  kernel.least_work = [=] {
    return build.strassen ? strassen_work(problem) : direct_work(problem);
  };
  return kernel;
}

Offer offer(const ConvGemmAlgorithm& own, const ConvGemmBuild& build, const Problem& problem,
            const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "is a convolution"};
  std::string refusal = refuse_conv(*conv);
  if (refusal.empty()) refusal = own.refuse(*conv);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  const std::vector<std::string> names = names_of(own, *conv, build);
  Offer offer;
  for (const auto& [src, dst] : own.layouts) {
    for (const std::string& name : names) {
      Primitive primitive = {name, src, dst};
      primitive.workspace_bytes =
          conv_gemm_scratch_bytes(variant_of(primitive, *conv, build), *conv) * device.threads;
      offer.primitives.push_back(std::move(primitive));
    }
  }
  return offer;
}

}  // namespace

Algorithm make_conv_gemm(ConvGemmAlgorithm own, std::string_view isa) {
  ConvGemmBuild build = conv_gemm_build(isa);
  build.strassen = own.strassen;
  Algorithm algorithm;
  algorithm.name = own.name;
  algorithm.rounding = 1;
  if (own.strassen) algorithm.numerics = {"strassen"};
  algorithm.version = own.version;
  algorithm.offer = [own = std::move(own), build](const Problem& problem, const Device& device) {
    return offer(own, build, problem, device);
  };
  algorithm.bind = [build](const Problem& problem, const Primitive& primitive,
                           const Device& device) {
    return bind(build, problem, primitive, device);
  };
  algorithm.packs_for_all_sizes = true;
  return with_backward_data(std::move(algorithm));
}

}  // namespace torchalgo::cpu
