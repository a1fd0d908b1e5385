// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv_gemm_row.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cpu_algo/conv_row.h"
#include "cpu_algo/kernels/conv_gemm.h"

namespace torchalgo::cpu {
namespace {

using kernels::ConvGemm;

// A panel of weights that is used by every strip of pixels should stay in L2, and so should the
// source of a block of pixels.
constexpr std::int64_t kPanelFloats = 128 * 1024 / 4;
constexpr std::int64_t kBlockFloats = 384 * 1024 / 4;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Build {
  decltype(&kernels::default_isa::conv_gemm) run;
  decltype(&kernels::default_isa::conv_gemm_scratch_bytes) scratch_bytes;
  bool has_wide_registers;
};

// Blocks of 16 output channels per panel: as many accumulators as registers hold, in panels of one
// width where possible.
int default_width(const ConvProblem& conv, const Build& build) {
  const std::int64_t blocks = channel_blocks(conv.k / conv.groups);
  if (!build.has_wide_registers || blocks == 1) return 1;
  return blocks % 2 == 0 ? 2 : 3;
}

// The row's name and its variants for this problem.
std::vector<std::string> names_of(const ConvGemmRow& row, const ConvProblem& conv,
                                  const Build& build) {
  std::vector<std::string> names = {std::string(row.name)};
  if (!build.has_wide_registers) return names;
  const std::int64_t blocks = channel_blocks(conv.k / conv.groups);
  for (const int width : row.widths) {
    const std::int64_t widest = ceil_div(blocks, ceil_div(blocks, width));
    if (widest == width && width != default_width(conv, build))
      names.push_back(fmt::format("{}.b{}", row.name, width));
  }
  return names;
}

// Blocks per panel, from the variant: "....b3".
int width_of(const Primitive& primitive, const ConvProblem& conv, const Build& build) {
  const std::string_view name = primitive.name;
  const std::string_view variant = name.substr(name.rfind('.'));
  if (variant.size() != 3 || variant[1] != 'b') return default_width(conv, build);
  const int width = variant[2] - '0';
  TORCHALGO_ASSERT(width >= 1 && width <= kernels::kMaxTileBlocks);
  return width;
}

// Channels of nhwc that make a plane: a divisor, so that all planes are equal.
std::int64_t nhwc_plane_width(std::int64_t channels) {
  constexpr std::int64_t kWidest = 64;
  if (channels <= kWidest) return channels;
  std::int64_t width = kWidest;
  while (channels % width != 0) --width;
  return width >= 8 ? width : channels;
}

void set_planes(const ConvProblem& conv, Layout src, ConvGemm& gemm) {
  const std::int64_t channels = conv.c / conv.groups;
  const std::int64_t pixels = conv.h * conv.w;
  if (src == Layout::kNhwc) {
    gemm.plane_width = nhwc_plane_width(channels);
    gemm.src_plane = gemm.plane_width;
    gemm.src_pixel = conv.c;
    gemm.src_group = channels;
  } else {
    gemm.plane_width = block_size(src);
    gemm.src_plane = pixels * gemm.plane_width;
    gemm.src_pixel = gemm.plane_width;
    gemm.src_group = channels * pixels;
  }
  gemm.planes = ceil_div(channels, gemm.plane_width);
  gemm.src_row = conv.w * gemm.src_pixel;
  gemm.src_image = element_count(src, 1, conv.c, pixels);
}

void set_dst(const ConvProblem& conv, Layout dst, ConvGemm& gemm) {
  const std::int64_t pixels = gemm.p * gemm.q;
  gemm.columns = conv.k / conv.groups;
  gemm.pad_lanes = is_blocked(dst);
  gemm.dst_pixel = gemm.pad_lanes ? 16 : conv.k;
  gemm.dst_block = gemm.pad_lanes ? pixels * 16 : 16;
  gemm.dst_group = gemm.pad_lanes ? gemm.columns * pixels : gemm.columns;
  gemm.dst_row = gemm.q * gemm.dst_pixel;
  gemm.dst_image = element_count(dst, 1, conv.k, pixels);
}

// A 1x1 convolution without strides sees an image (in nhwc: all images) as one row of pixels.
void flatten(ConvGemm& gemm) {
  const bool is_pointwise =
      gemm.r * gemm.s == 1 && gemm.stride_h * gemm.stride_w == 1 && gemm.pad_h + gemm.pad_w == 0;
  if (!is_pointwise) return;
  gemm.q *= gemm.p;
  gemm.p = gemm.h = 1;
  gemm.w = gemm.q;
  const bool are_images_adjacent =
      gemm.src_image == gemm.w * gemm.src_pixel && gemm.dst_image == gemm.q * gemm.dst_pixel;
  if (!are_images_adjacent) return;
  gemm.q *= gemm.images;
  gemm.w = gemm.q;
  gemm.images = 1;
}

ConvGemm geometry_of(const ConvProblem& conv, Layout src, Layout dst) {
  const std::vector<std::int64_t> sizes = conv_dst_sizes(conv);
  ConvGemm gemm;
  gemm.images = conv.n;
  gemm.h = conv.h;
  gemm.w = conv.w;
  gemm.p = sizes[2];
  gemm.q = sizes[3];
  gemm.r = conv.r;
  gemm.s = conv.s;
  gemm.stride_h = conv.stride_h;
  gemm.stride_w = conv.stride_w;
  gemm.pad_h = conv.pad_h;
  gemm.pad_w = conv.pad_w;
  gemm.dilation_h = conv.dilation_h;
  gemm.dilation_w = conv.dilation_w;
  gemm.groups = conv.groups;
  set_planes(conv, src, gemm);
  set_dst(conv, dst, gemm);
  gemm.activation = activation_of(conv.epilogue);
  flatten(gemm);
  return gemm;
}

// One row of pixels is cut anywhere, unless it must be padded.
std::int64_t most_blocks(const ConvGemm& gemm) {
  return gemm.p == 1 && gemm.pad_w == 0 ? gemm.q : gemm.p;
}

// Blocks of K and of pixels that fit the caches; the same for any number of threads.
void set_blocks(ConvGemm& gemm) {
  const std::int64_t plane_weights = gemm.r * gemm.s * gemm.plane_width * gemm.panel_blocks * 16;
  gemm.block_planes = std::clamp<std::int64_t>(kPanelFloats / plane_weights, 1, gemm.planes);
  gemm.block_planes = ceil_div(gemm.planes, ceil_div(gemm.planes, gemm.block_planes));
  const std::int64_t image = gemm.block_planes * gemm.plane_width * gemm.h * gemm.w;
  gemm.blocks_per_image =
      std::clamp<std::int64_t>(ceil_div(image, kBlockFloats), 1, most_blocks(gemm));
  if (gemm.blocks_per_image == 1) {
    gemm.block_images = std::clamp<std::int64_t>(kBlockFloats / image, 1, gemm.images);
  }
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
             trial.blocks_per_image < most_blocks(trial)) {
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

ConvGemm plan_conv_gemm(const ConvProblem& conv, const Primitive& primitive, const Build& build) {
  ConvGemm gemm = geometry_of(conv, primitive.src, primitive.dst);
  gemm.panel_blocks = width_of(primitive, conv, build);
  set_blocks(gemm);
  return gemm;
}

// Weights kcrs to [groups][panel][plane, r, s, lane][panel's channels], zero where there is none.
at::Tensor pack_weights(const ConvGemm& gemm, const ConvProblem& conv, const at::Tensor& weights) {
  const at::Tensor plain = weights.to(at::kFloat).contiguous();
  const std::int64_t blocks = channel_blocks(gemm.columns);
  const std::int64_t taps = gemm.r * gemm.s;
  const std::int64_t channels = conv.c / conv.groups;
  const std::int64_t depth = gemm.planes * gemm.plane_width * taps;
  const kernels::Strips panels(blocks, gemm.panel_blocks);
  at::Tensor packed = at::zeros({gemm.groups * blocks * 16 * depth}, at::kFloat);
  const float* from = plain.const_data_ptr<float>();
  float* to = packed.mutable_data_ptr<float>();
  at::parallel_for(0, gemm.groups * panels.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t group = i / panels.count;
      const std::int64_t first = panels.begin(i % panels.count) * 16;
      const std::int64_t width = panels.size(i % panels.count) * 16;
      float* panel = to + (group * blocks * 16 + first) * depth;
      for (std::int64_t column = 0; column < std::min(width, gemm.columns - first); ++column) {
        const float* filter = from + (group * gemm.columns + first + column) * channels * taps;
        for (std::int64_t c = 0; c < channels; ++c) {
          for (std::int64_t tap = 0; tap < taps; ++tap) {
            const std::int64_t k =
                (c / gemm.plane_width * taps + tap) * gemm.plane_width + c % gemm.plane_width;
            panel[k * width + column] = filter[c * taps + tap];
          }
        }
      }
    }
  });
  return packed;
}

std::int64_t packed_bytes(const Build& build, const ConvProblem& conv, const Primitive& primitive) {
  const ConvGemm gemm = plan_conv_gemm(conv, primitive, build);
  const std::int64_t columns = gemm.groups * channel_blocks(gemm.columns) * 16;
  const std::int64_t depth = gemm.planes * gemm.plane_width * gemm.r * gemm.s;
  const std::int64_t bias = has(conv.epilogue, PostOp::kBias) ? 1 : 0;
  return columns * (depth + bias) * std::int64_t{sizeof(float)};
}

Packed pack(const Build& build, const ConvProblem& conv, const Primitive& primitive,
            const Weights& weights) {
  const ConvGemm gemm = plan_conv_gemm(conv, primitive, build);
  const at::Tensor packed = pack_weights(gemm, conv, weights.weights);
  if (!has(conv.epilogue, PostOp::kBias)) return {packed};
  // Groups have whole blocks unless there is one group, so the bias needs zeros at its end only.
  const std::int64_t columns = gemm.groups * channel_blocks(gemm.columns) * 16;
  TORCHALGO_ASSERT(gemm.groups == 1 || columns == conv.k);
  return {packed, pad_bias(weights.bias, columns)};
}

at::Tensor run(const Build& build, const Call& call) {
  const auto& conv = std::get<ConvProblem>(call.problem);
  ConvGemm gemm = plan_conv_gemm(conv, call.primitive, build);
  const std::int64_t slice_bytes = build.scratch_bytes(gemm);
  const std::int64_t slices =
      std::min<std::int64_t>(call.primitive.workspace_bytes / slice_bytes, at::get_num_threads());
  TORCHALGO_ASSERT(slices > 0);
  set_parts(gemm, slices);
  gemm.src = call.src[0].const_data_ptr<float>();
  gemm.weights = call.packed[0].const_data_ptr<float>();
  if (call.packed.size() > 1) gemm.bias = call.packed[1].const_data_ptr<float>();
  if (call.residual.defined()) gemm.residual = call.residual.const_data_ptr<float>();
  gemm.dst = call.dst.mutable_data_ptr<float>();
  gemm.prefetch = call.packed[0].numel() > kBlockFloats;
  auto* workspace = static_cast<char*>(call.workspace);
  run_in_slices(kernels::conv_gemm_tasks(gemm), slices,
                [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                  build.run(gemm, begin, end, workspace + slice * slice_bytes);
                });
  return call.dst;
}

Offer offer(const ConvGemmRow& row, const Build& build, const Problem& problem,
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
  const Build build = {TORCHALGO_PICK_KERNEL(isa, conv_gemm),
                       TORCHALGO_PICK_KERNEL(isa, conv_gemm_scratch_bytes), isa == "avx512"};
  Algorithm algorithm;
  algorithm.name = row.name;
  algorithm.version = row.version;
  algorithm.offer = [row = std::move(row), build](const Problem& problem, const Device& device) {
    return offer(row, build, problem, device);
  };
  algorithm.pack = [build](const Problem& problem, const Primitive& primitive,
                           const Weights& weights) {
    return pack(build, std::get<ConvProblem>(problem), primitive, weights);
  };
  algorithm.packed_bytes = [build](const Problem& problem, const Primitive& primitive) {
    return packed_bytes(build, std::get<ConvProblem>(problem), primitive);
  };
  algorithm.run = [build](const Call& call) { return run(build, call); };
  algorithm.packs_for_all_sizes = true;
  algorithm.least_work = direct_work;
  return algorithm;
}

}  // namespace torchalgo::cpu
