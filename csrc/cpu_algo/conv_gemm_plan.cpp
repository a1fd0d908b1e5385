// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv_gemm_plan.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/kernels/strassen.h"

namespace torchalgo::cpu {

using kernels::ConvGemm;

namespace {

// A panel of weights that is used by every strip of pixels should stay in L2 too.
constexpr std::int64_t kPanelFloats = 128 * 1024 / 4;
// Padded rows of a network's image, which is cold: the first block waits for them, the others have
// them asked for in time.
constexpr std::int64_t kImageFloats = 96 * 1024 / 4;
// Strassen's are used in pairs, together with their sums.
constexpr std::int64_t kStrassenFloats = 64 * 1024 / 4;

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

// Planes per block of K.
std::int64_t k_block_planes(const ConvGemm& gemm) {
  const std::int64_t plane_weights = gemm.r * gemm.s * gemm.plane_width * gemm.panel_blocks * 16;
  const std::int64_t panel_floats = gemm.strassen ? kStrassenFloats : kPanelFloats;
  const std::int64_t planes =
      std::clamp<std::int64_t>(panel_floats / plane_weights, 1, gemm.planes);
  return ceil_div(gemm.planes, ceil_div(gemm.planes, planes));
}

}  // namespace

ConvGemmBuild conv_gemm_build(std::string_view isa) {
  return {TORCHALGO_PICK_KERNEL(isa, conv_gemm),
          TORCHALGO_PICK_KERNEL(isa, conv_gemm_scratch_bytes), isa == "avx512"};
}

std::int64_t blocks_to_cut(const ConvProblem& conv, bool strassen) {
  const std::int64_t blocks = channel_blocks(conv.k / conv.groups);
  return strassen ? kernels::strassen_half(blocks) : blocks;
}

int default_panel_blocks(std::int64_t blocks, const ConvGemmBuild& build) {
  if (!build.has_wide_registers || blocks == 1) return 1;
  return blocks % 2 == 0 ? 2 : 3;
}

ConvGemm conv_gemm_geometry(const ConvProblem& conv, Layout src, Layout dst) {
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
  return gemm;
}

bool can_strassen(const ConvProblem& conv, Layout src, Layout dst) {
  constexpr std::int64_t kFewest = 64;  // of 32 it never won
  const auto fits = [](Layout layout, std::int64_t channels) {
    return is_blocked(layout) || (layout == Layout::kNhwc && channels % 16 == 0);
  };
  return is_pointwise(conv) && std::min(conv.c, conv.k) >= kFewest && conv.h * conv.w > 1 &&
         fits(src, conv.c) && fits(dst, conv.k);
}

void use_strassen(ConvGemm& gemm) {
  gemm.strassen = true;
  if (gemm.plane_width == 16) return;
  gemm.planes = gemm.planes * gemm.plane_width / 16;
  gemm.plane_width = gemm.src_plane = 16;
}

ConvGemm plan_part(const ConvProblem& conv, Layout src, Layout dst, const ConvGemmBuild& build,
                   bool strassen) {
  ConvGemm gemm = conv_gemm_geometry(conv, src, dst);
  gemm.images = 1;
  if (strassen) use_strassen(gemm);
  gemm.panel_blocks = default_panel_blocks(blocks_to_cut(conv, strassen), build);
  return gemm;
}

Work strassen_work(const Problem& problem, const Primitive& primitive) {
  Work work = direct_work(problem, primitive);
  const auto save = [&](const ConvProblem& conv) {
    if (can_strassen(conv, Layout::kNChw16c, Layout::kNChw16c))
      work.flops -= direct_work(conv, primitive).flops / 8;
  };
  if (const auto* conv = std::get_if<ConvProblem>(&problem)) save(*conv);
  if (const auto* chain = std::get_if<ConvChainProblem>(&problem))
    for (const ConvProblem& conv : chain->convs) save(conv);
  return work;
}

void flatten_conv_gemm(ConvGemm& gemm) {
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

std::int64_t most_conv_gemm_blocks(const ConvGemm& gemm) {
  return gemm.p == 1 && gemm.pad_w == 0 ? gemm.q : gemm.p;
}

void set_conv_gemm_blocks(ConvGemm& gemm) {
  gemm.block_planes = k_block_planes(gemm);
  const bool is_image = gemm.planes * gemm.plane_width <= kMostImageChannels && gemm.pad_w > 0;
  const std::int64_t cached = is_image ? kImageFloats : kCachedFloats;
  const std::int64_t image = gemm.block_planes * gemm.plane_width * gemm.h * gemm.w;
  gemm.blocks_per_image =
      std::clamp<std::int64_t>(ceil_div(image, cached), 1, most_conv_gemm_blocks(gemm));
  if (gemm.blocks_per_image == 1) {
    gemm.block_images = std::clamp<std::int64_t>(cached / image, 1, gemm.images);
  }
}

at::Tensor pack_conv_gemm(const ConvGemm& gemm, const ConvProblem& conv,
                          const at::Tensor& weights) {
  const at::Tensor plain = weights.to(at::kFloat).contiguous();
  const std::int64_t taps = gemm.r * gemm.s;
  const std::int64_t channels = conv.c / conv.groups;
  const std::int64_t depth = gemm.planes * gemm.plane_width * taps;
  const std::int64_t blocks = blocks_to_cut(conv, gemm.strassen);
  const std::int64_t parts = gemm.strassen ? 2 : gemm.groups;
  const std::int64_t columns = gemm.strassen ? blocks * 16 : gemm.columns;  // of a part
  const kernels::Strips panels(blocks, gemm.panel_blocks);
  at::Tensor packed = zero_floats({packed_floats(gemm)});
  const float* from = plain.const_data_ptr<float>();
  float* to = packed.mutable_data_ptr<float>();
  at::parallel_for(0, parts * panels.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t part = i / panels.count;
      const std::int64_t first = panels.begin(i % panels.count) * 16;
      const std::int64_t width = panels.size(i % panels.count) * 16;
      float* panel = to + (part * blocks * 16 + first) * depth;
      const std::int64_t last = std::min({first + width, columns, conv.k - part * columns});
      for (std::int64_t column = first; column < last; ++column) {
        const float* filter = from + (part * columns + column) * channels * taps;
        for (std::int64_t c = 0; c < channels; ++c) {
          for (std::int64_t tap = 0; tap < taps; ++tap) {
            const std::int64_t k =
                (c / gemm.plane_width * taps + tap) * gemm.plane_width + c % gemm.plane_width;
            panel[k * width + column - first] = filter[c * taps + tap];
          }
        }
      }
    }
  });
  return packed;
}

std::int64_t packed_floats(const ConvGemm& gemm) {
  const std::int64_t blocks = channel_blocks(gemm.columns);
  const std::int64_t whole = gemm.strassen ? 2 * kernels::strassen_half(blocks) : blocks;
  return gemm.groups * whole * 16 * gemm.planes * gemm.plane_width * gemm.r * gemm.s;
}

}  // namespace torchalgo::cpu
