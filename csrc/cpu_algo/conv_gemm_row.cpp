// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv_gemm_row.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv_gemm_plan.h"
#include "cpu_algo/conv_row.h"

namespace torchalgo::cpu {
namespace {

using kernels::ConvGemm;

// The row's name and its variants for this problem.
std::vector<std::string> names_of(const ConvGemmRow& row, const ConvProblem& conv,
                                  const ConvGemmBuild& build) {
  std::vector<std::string> names = {std::string(row.name)};
  if (!build.has_wide_registers) return names;
  const std::int64_t blocks = blocks_to_cut(conv, build.strassen);
  for (const int width : row.widths) {
    const std::int64_t widest = ceil_div(blocks, ceil_div(blocks, width));
    if (widest == width && width != default_panel_blocks(blocks, build))
      names.push_back(fmt::format("{}.b{}", row.name, width));
  }
  return names;
}

// Blocks per panel, from the variant: "....b3".
int width_of(const Primitive& primitive, std::int64_t blocks, const ConvGemmBuild& build) {
  const std::string_view name = primitive.name;
  const std::string_view variant = name.substr(name.rfind('.'));
  if (variant.size() != 3 || variant[1] != 'b') return default_panel_blocks(blocks, build);
  const int width = variant[2] - '0';
  TORCHALGO_ASSERT(width >= 1 && width <= kernels::kMaxTileBlocks);
  return width;
}

std::int64_t panel_count(const ConvGemm& gemm) {
  return gemm.groups * ceil_div(channel_blocks(gemm.columns), gemm.panel_blocks);
}

// Microseconds of the busiest of `threads` threads if they divide the panels by `panel_parts` and
// the blocks by the rest: a model that only has to order the ways to divide.
double estimate_us(const ConvGemm& gemm, std::int64_t threads) {
  constexpr double kFmaPerUs = 50e3;
  constexpr double kFloatsPerUs = 2.5e3;  // from L3 or memory
  constexpr double kWeightsInL2 = 128 * 1024;
  const std::int64_t blocks = conv_gemm_blocks(gemm);
  const std::int64_t own_blocks = ceil_div(blocks, threads / gemm.panel_parts);
  const double pixel_share = static_cast<double>(own_blocks) / static_cast<double>(blocks);
  const std::int64_t panels = panel_count(gemm);
  const double panel_share =
      static_cast<double>(ceil_div(panels, gemm.panel_parts)) / static_cast<double>(panels);
  const auto pixels = static_cast<double>(gemm.images * gemm.p * gemm.q);
  const auto depth = static_cast<double>(gemm.planes * gemm.plane_width * gemm.r * gemm.s);
  const auto columns = static_cast<double>(gemm.groups * gemm.columns);
  const double weights = depth * columns * panel_share;
  const double reads = weights > kWeightsInL2 ? static_cast<double>(own_blocks) : 1.0;
  const auto src = static_cast<double>(gemm.images * gemm.src_image);
  return pixels * depth * columns * pixel_share * panel_share / kFmaPerUs +
         (weights * reads + src * pixel_share) / kFloatsPerUs;
}

// Divides the work among threads: by pixels where weights are small, by output channels where they
// are not, so that each thread reads its part of them.
void set_parts(ConvGemm& gemm, std::int64_t threads) {
  if (threads == 1) return;
  ConvGemm best = gemm;
  double best_us = 0;
  for (std::int64_t parts = 1; parts <= threads; ++parts) {
    if (threads % parts != 0) continue;
    ConvGemm trial = gemm;
    trial.panel_parts = parts;
    const std::int64_t row_parts = threads / parts;
    if (conv_gemm_blocks(trial) % row_parts != 0) {
      // More and smaller blocks, one image at a time, until they divide evenly.
      trial.block_images = 1;
      while (conv_gemm_blocks(trial) % row_parts != 0 &&
             trial.blocks_per_image < most_conv_gemm_blocks(trial)) {
        ++trial.blocks_per_image;
      }
    }
    const double us = estimate_us(trial, threads);
    if (parts == 1 || us < best_us) {
      best = trial;
      best_us = us;
    }
  }
  gemm = best;
}

ConvGemm plan_conv_gemm(const ConvProblem& conv, const Primitive& primitive,
                        const ConvGemmBuild& build) {
  ConvGemm gemm = conv_gemm_geometry(conv, primitive.src, primitive.dst);
  flatten_conv_gemm(gemm);
  if (build.strassen) use_strassen(gemm);
  gemm.panel_blocks = width_of(primitive, blocks_to_cut(conv, build.strassen), build);
  set_conv_gemm_blocks(gemm);
  return gemm;
}

std::int64_t padded_columns(const ConvGemm& gemm) {
  return gemm.groups * channel_blocks(gemm.columns) * 16;
}

Packed pack(const ConvGemm& gemm, const ConvProblem& conv, const Weights& weights) {
  const at::Tensor packed = pack_conv_gemm(gemm, conv, weights[0].weights);
  if (!has(conv.epilogue, PostOp::kBias)) return {packed};
  // Groups have whole blocks unless there is one group, so the bias needs zeros at its end only.
  TORCHALGO_ASSERT(gemm.groups == 1 || padded_columns(gemm) == conv.k);
  return {packed, pad_bias(weights[0].bias, padded_columns(gemm))};
}

at::Tensor run(const ConvGemmBuild& build, const ConvGemm& geometry, std::int64_t slice_bytes,
               std::int64_t slices, const KernelArgs& args) {
  ConvGemm gemm = geometry;
  gemm.src = args.src[0].const_data_ptr<float>();
  gemm.weights = args.packed[0].const_data_ptr<float>();
  if (args.packed.size() > 1) gemm.bias = args.packed[1].const_data_ptr<float>();
  if (args.residual.defined()) gemm.residual = args.residual.const_data_ptr<float>();
  gemm.dst = args.dst.mutable_data_ptr<float>();
  gemm.prefetch = args.packed[0].numel() > kCachedFloats;
  auto* workspace = static_cast<char*>(args.workspace);
  run_in_slices(kernels::conv_gemm_tasks(gemm), slices,
                [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                  build.run(gemm, begin, end, workspace + slice * slice_bytes);
                });
  return args.dst;
}

Kernel prepare(const ConvGemmBuild& build, const Problem& problem, const Primitive& primitive,
               const Device& device) {
  const auto& conv = std::get<ConvProblem>(problem);
  const std::int64_t threads = device.threads;
  ConvGemm gemm = plan_conv_gemm(conv, primitive, build);
  const std::int64_t slice_bytes = build.scratch_bytes(gemm);
  set_parts(gemm, threads);
  const std::int64_t bias = has(conv.epilogue, PostOp::kBias) ? padded_columns(gemm) : 0;
  return {
      .problem = problem,
      .primitive = with_workspace(primitive, slice_bytes * threads),
      .run = [=](const KernelArgs& args) { return run(build, gemm, slice_bytes, threads, args); },
      .pack = [=](const Weights& weights) { return pack(gemm, conv, weights); },
      .packed_bytes = [=] { return (packed_floats(gemm) + bias) * std::int64_t{sizeof(float)}; },
      .least_work =
          [=] {
            return build.strassen ? strassen_work(problem, primitive)
                                  : direct_work(problem, primitive);
          }};
}

Offer offer(const ConvGemmRow& row, const ConvGemmBuild& build, const Problem& problem,
            const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "is a convolution"};
  std::string refusal = refuse_conv(*conv);
  if (refusal.empty()) refusal = row.refuse(*conv);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  const std::vector<std::string> names = names_of(row, *conv, build);
  Offer offer;
  for (const auto& [src, dst] : row.layouts) {
    for (const std::string& name : names) {
      Primitive primitive = {name, src, dst};
      const ConvGemm gemm = plan_conv_gemm(*conv, primitive, build);
      primitive.workspace_bytes = build.scratch_bytes(gemm) * device.threads;
      offer.primitives.push_back(std::move(primitive));
    }
  }
  return offer;
}

}  // namespace

Algorithm make_conv_gemm(ConvGemmRow row, std::string_view isa) {
  ConvGemmBuild build = conv_gemm_build(isa);
  build.strassen = row.strassen;
  Algorithm algorithm;
  algorithm.name = row.name;
  algorithm.rounding = 1;
  algorithm.version = row.version;
  algorithm.offer = [row = std::move(row), build](const Problem& problem, const Device& device) {
    return offer(row, build, problem, device);
  };
  algorithm.prepare = [build](const Problem& problem, const Primitive& primitive,
                              const Device& device) {
    return prepare(build, problem, primitive, device);
  };
  algorithm.packs_for_all_sizes = true;
  return with_backward_data(std::move(algorithm));
}

}  // namespace torchalgo::cpu
