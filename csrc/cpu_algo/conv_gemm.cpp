// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/conv_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/instruction_sets.h"
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
          TORCHALGO_PICK_KERNEL(isa, conv_gemm_scratch_bytes),
          kernels::instruction_set(isa).has_wide_registers};
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
  ConvGemm gemm;
  gemm.images = conv.n;
  set_geometry(gemm, conv);
  gemm.after_h = conv.pad_h + conv.extra_h;
  gemm.after_w = conv.pad_w + conv.extra_w;
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

void flatten_conv_gemm(ConvGemm& gemm) {
  const bool is_pointwise = gemm.r * gemm.s * gemm.stride_h * gemm.stride_w == 1 &&
                            gemm.pad_h + gemm.after_h == 0 && !has_wide_rows(gemm);
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
  return gemm.p == 1 && !has_wide_rows(gemm) ? gemm.q : gemm.p;
}

void set_conv_gemm_blocks(ConvGemm& gemm) {
  gemm.block_planes = k_block_planes(gemm);
  const bool is_image = gemm.planes * gemm.plane_width <= kMostImageChannels && has_wide_rows(gemm);
  const std::int64_t cached = is_image ? kImageFloats : kCachedFloats;
  const std::int64_t image = gemm.block_planes * gemm.plane_width * gemm.h * gemm.w;
  gemm.blocks_per_image =
      std::clamp<std::int64_t>(ceil_div(image, cached), 1, most_conv_gemm_blocks(gemm));
  if (gemm.blocks_per_image == 1) {
    gemm.block_images = std::clamp<std::int64_t>(cached / image, 1, gemm.images);
  }
}

void pack_conv_gemm(const ConvGemm& gemm, const ConvProblem& conv, const float* weights,
                    float* packed, const Threads& threads) {
  const std::int64_t taps = gemm.r * gemm.s;
  const std::int64_t channels = conv.c / conv.groups;
  const std::int64_t depth = gemm.planes * gemm.plane_width * taps;
  const std::int64_t blocks = blocks_to_cut(conv, gemm.strassen);
  const std::int64_t parts = gemm.strassen ? 2 : gemm.groups;
  const std::int64_t columns = gemm.strassen ? blocks * 16 : gemm.columns;  // of a part
  const kernels::Strips panels(blocks, gemm.panel_blocks);
  std::fill_n(packed, packed_floats(gemm), 0.0F);
  parallel_for(threads, parts * panels.count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t part = i / panels.count;
      const std::int64_t first = panels.begin(i % panels.count) * 16;
      const std::int64_t width = panels.size(i % panels.count) * 16;
      float* panel = packed + (part * blocks * 16 + first) * depth;
      const std::int64_t last = std::min({first + width, columns, conv.k - part * columns});
      for (std::int64_t column = first; column < last; ++column) {
        const float* filter = weights + (part * columns + column) * channels * taps;
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
}

std::int64_t packed_floats(const ConvGemm& gemm) {
  const std::int64_t blocks = channel_blocks(gemm.columns);
  const std::int64_t whole = gemm.strassen ? 2 * kernels::strassen_half(blocks) : blocks;
  return gemm.groups * whole * 16 * gemm.planes * gemm.plane_width * gemm.r * gemm.s;
}

namespace {

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

// Divides the pixels into more blocks than threads, if that does not read weights from memory more
// often.
void refine_blocks(ConvGemm& gemm, const ConvGemmBuild& build, std::int64_t threads) {
  if (threads == 1 || gemm.images > 1 || gemm.prefetch) return;
  const std::int64_t most =
      std::min(gemm.p * gemm.q / fewest_pixels(build), most_conv_gemm_blocks(gemm));
  const std::int64_t blocks = tasks_for(threads / gemm.panel_parts, most);
  if (blocks <= most) gemm.blocks_per_image = std::max(gemm.blocks_per_image, blocks);
}

// A convolution from src to dst layout by panels of `panel_blocks` blocks of 16 output channels.
struct Variant {
  Layout src = Layout::kNChw16c, dst = Layout::kNChw16c;
  int panel_blocks = 1;
  ConvGemmBuild build;
};

ConvGemm plan_conv_gemm(const Variant& variant, const ConvProblem& conv) {
  ConvGemm gemm = conv_gemm_geometry(conv, variant.src, variant.dst);
  flatten_conv_gemm(gemm);
  if (variant.build.strassen) use_strassen(gemm);
  gemm.panel_blocks = variant.panel_blocks;
  set_conv_gemm_blocks(gemm);
  return gemm;
}

std::int64_t padded_columns(const ConvGemm& gemm) {
  return gemm.groups * channel_blocks(gemm.columns) * 16;
}

void run(const Variant& variant, const ConvGemm& geometry, std::int64_t slice_bytes,
         std::int64_t slices, const RunArgs& args, const Threads& threads) {
  ConvGemm gemm = geometry;
  gemm.src = args.src[0];
  gemm.weights = args.weights[0].weights;
  gemm.bias = args.weights[0].bias;
  gemm.residual = args.residual;
  gemm.dst = args.dst;
  auto* workspace = static_cast<char*>(args.workspace);
  run_ranges_in_slices(threads, kernels::conv_gemm_tasks(gemm), slices,
                       [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                         variant.build.run(gemm, begin, end, workspace + slice * slice_bytes);
                       });
}

}  // namespace

Work strassen_work(const Problem& problem) {
  Work work = direct_work(problem);
  for (const Problem& layer : layers_of(problem)) {
    const auto* conv = std::get_if<ConvProblem>(&layer);
    if (conv != nullptr && can_strassen(*conv, Layout::kNChw16c, Layout::kNChw16c))
      work.flops -= direct_work(layer).flops / 8;
  }
  return work;
}

namespace {

PlainKernel bind_variant(const Variant& variant, const ConvProblem& conv, std::int64_t threads) {
  ConvGemm gemm = plan_conv_gemm(variant, conv);
  const std::int64_t slice_bytes = variant.build.scratch_bytes(gemm);
  set_parts(gemm, threads);
  const std::int64_t weight_floats = packed_floats(gemm);
  gemm.prefetch = weight_floats > kCachedFloats;
  refine_blocks(gemm, variant.build, threads);
  const bool has_bias = has(conv.epilogue, PostOp::kBias);
  const std::int64_t bias_floats = has_bias ? padded_columns(gemm) : 0;
  // Groups have whole blocks unless there is one group, so the bias needs zeros at its end only.
  TORCHALGO_ASSERT(!has_bias || gemm.groups == 1 || bias_floats == conv.k);
  return {
      .workspace_bytes = slice_bytes * threads,
      .packed = {{weight_floats, bias_floats}},
      .packing =
          fmt::format("panels of {} blocks, planes of {}", gemm.panel_blocks, gemm.plane_width),
      .pack =
          [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
              const Threads& pool) {
            pack_conv_gemm(gemm, conv, model[0].weights, to[0].weights, pool);
            if (has_bias) pad_bias(model[0].bias, conv.k, to[0].bias, bias_floats);
          },
      .run = [=](const RunArgs& args,
                 const Threads& pool) { run(variant, gemm, slice_bytes, threads, args, pool); }};
}

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

Variant variant_of(const Primitive& primitive, const ConvProblem& conv,
                   const ConvGemmBuild& build) {
  const int width = width_of(primitive, blocks_to_cut(conv, build.strassen), build);
  return {primitive.src, primitive.dst, width, build};
}

PlainKernel bind(const ConvGemmBuild& build, const Problem& problem, const Primitive& primitive,
                 const Device& device) {
  const auto& conv = std::get<ConvProblem>(problem);
  PlainKernel kernel = bind_variant(variant_of(primitive, conv, build), conv, device.threads);
  kernel.least_work = [=] {
    return build.strassen ? strassen_work(problem) : direct_work(problem);
  };
  return kernel;
}

Offer offer(const ConvGemmAlgorithm& own, const ConvGemmBuild& build, const Problem& problem,
            const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  std::string refusal = refuse_conv(*conv);
  if (refusal.empty()) refusal = own.refuse(*conv);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  const std::vector<std::string> names = names_of(own, *conv, build);
  Offer offer;
  for (const auto& [src, dst] : own.layouts) {
    for (const std::string& name : names) {
      Primitive primitive = {name, src, dst};
      const ConvGemm gemm = plan_conv_gemm(variant_of(primitive, *conv, build), *conv);
      primitive.workspace_bytes = build.scratch_bytes(gemm) * device.threads;
      offer.primitives.push_back(std::move(primitive));
    }
  }
  return offer;
}

}  // namespace

Algorithm make_conv_gemm(const ConvGemmAlgorithm& own, std::string_view isa) {
  ConvGemmBuild build = conv_gemm_build(isa);
  build.strassen = own.strassen;
  Algorithm algorithm = {.name = own.name,
                         .version = own.version,
                         .rounding = 1,
                         .offer = std::bind_front(offer, own, build),
                         .bind = std::bind_front(bind, build)};
  if (own.strassen) algorithm.numerics = {"strassen"};
  return with_backward_data(std::move(algorithm));
}

}  // namespace torchalgo::cpu
