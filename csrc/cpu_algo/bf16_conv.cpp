// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/bf16_conv.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/conv_gemm.h"
#include "cpu_algo/rounding.h"
#include "cpu_algo/same_layout.h"
#include "ir/algorithm.h"

namespace torchalgo::cpu {
namespace {

using kernels::Bf16Conv;

constexpr const char* kName = "cpu.bf16_conv";
constexpr std::int64_t kTileRows = 16, kDepth = 32;
// Narrower results have rows that would leave too much of a tile empty.
constexpr std::int64_t kFewestColumns = 12;
// Bytes of a copy that stays in L2 beside weights and results. If the weights are larger than
// kLargeWeights, reading them once for all rows is worth more.
constexpr std::int64_t kCopyBytes = 256 * 1024, kLargestCopyBytes = 1024 * 1024;
constexpr std::int64_t kLargeWeights = 768 * 1024;
// Bytes of weights that are multiplied with one pair of tiles after another. Large weights, which
// come from L3 or memory, are multiplied with all pixels while they are in L1.
constexpr std::int64_t kRunBytes = 512 * 1024, kLargeRunBytes = 32 * 1024;

// Returns the largest even divisor of `run` that a step may have as its depth, or 0.
std::int64_t depth_of(std::int64_t run) {
  for (std::int64_t depth = kDepth; depth > 0; depth -= 2)
    if (run % depth == 0) return depth;
  return 0;
}

// Sets pixel, depth and steps, for the fewest steps. If the pixels are copied, zeros between them
// may help. Returns false if the channels have no even divisor.
bool set_steps(Bf16Plan& plan, bool is_copied) {
  constexpr std::int64_t kMostZeros = 16;
  Bf16Conv& conv = plan.conv;
  conv.steps = 0;
  for (std::int64_t pixel = conv.c; pixel <= conv.c + (is_copied ? kMostZeros : 0); ++pixel) {
    const std::int64_t depth = depth_of(plan.taps * pixel);
    if (depth == 0) continue;
    const std::int64_t steps = plan.taps * pixel / depth;
    // A step less pays for zeros only if there are few steps: rows without are copied faster.
    if (conv.steps > 0 && steps * 8 >= conv.steps * 7) continue;
    conv.pixel = pixel;
    conv.depth = depth;
    conv.steps = steps;
  }
  if (conv.steps == 0) return false;
  conv.steps *= conv.r * conv.s / plan.taps;
  return true;
}

// Chooses where tiles are loaded from.
void set_source(Bf16Plan& plan, bool is_padded) {
  Bf16Conv& conv = plan.conv;
  const bool is_dense = conv.stride_h * conv.stride_w == 1;
  const bool is_wide = conv.q >= kFewestColumns;
  const bool may_read_image = conv.r * conv.s == 1 && !is_padded && !conv.is_src_f32 &&
                              (is_dense || is_wide) && set_steps(plan, false) &&
                              conv.steps * 4 <= ceil_div(conv.c, kDepth) * 5;
  if (may_read_image) {
    conv.source = Bf16Conv::kImage;
    if (!is_dense) return;
    conv.q = conv.w = conv.images * conv.p * conv.q;  // all pixels are one row
    conv.images = conv.p = conv.h = 1;
    return;
  }
  conv.source = is_wide ? Bf16Conv::kRows : Bf16Conv::kShiftedRows;
  if (is_wide && conv.dilation_w == 1) plan.taps = conv.s;
  const bool is_set = set_steps(plan, true);
  TORCHALGO_ASSERT(is_set);
}

void set_offsets(Bf16Plan& plan) {
  const Bf16Conv& conv = plan.conv;
  const std::int64_t width = bf16_conv_copy_width(conv), plane = bf16_conv_plane_rows(conv);
  for (std::int64_t y = 0; y < conv.r; ++y) {
    for (std::int64_t x = 0; x < conv.s; x += plan.taps) {
      const std::int64_t row = y * conv.dilation_h;
      std::int64_t pixel = row * width + x * conv.dilation_w;
      if (conv.source == Bf16Conv::kShiftedRows) {
        const std::int64_t first = (x * conv.stride_h + row % conv.stride_h) * plane;
        pixel = (first + row / conv.stride_h) * width;
      }
      for (std::int64_t i = 0; i < plan.taps * conv.pixel; i += conv.depth)
        plan.offsets.push_back(pixel * conv.pixel + i);
    }
  }
  TORCHALGO_ASSERT(static_cast<std::int64_t>(plan.offsets.size()) == conv.steps);
}

// Returns the output rows of a band whose copy has about `bytes`, at most `most`.
std::int64_t rows_per_band(const Bf16Conv& conv, std::int64_t bytes, std::int64_t most) {
  Bf16Conv band = conv;
  band.band_rows = 1;
  const std::int64_t first = bf16_conv_copy_elements(band);
  band.band_rows = 2;
  const std::int64_t each = bf16_conv_copy_elements(band) - first;
  const std::int64_t rows = 1 + (bytes / 2 - first) / std::max<std::int64_t>(each, 1);
  const std::int64_t fitting = std::clamp<std::int64_t>(rows, 1, std::max<std::int64_t>(most, 1));
  return ceil_div(conv.p, ceil_div(conv.p, fitting));  // all bands are about equal
}

void set_tiles(Bf16Conv& conv) {
  std::int64_t pixels = conv.q;
  if (conv.source == Bf16Conv::kShiftedRows) pixels *= conv.band_rows;
  std::int64_t tiles = ceil_div(pixels, kTileRows);
  const bool is_one_row = conv.source == Bf16Conv::kShiftedRows || conv.images * conv.p == 1;
  if (is_one_row && tiles > 1) tiles += tiles % 2;  // they are computed in pairs
  conv.tile_rows = ceil_div(pixels, tiles);
  conv.tiles_per_row = ceil_div(conv.q, conv.tile_rows);
}

// Divides the work among threads: by pixels where weights are small, by output channels where they
// are not, so that each thread reads its part of them.
void divide(Bf16Conv& conv, std::int64_t image_bytes, std::int64_t threads) {
  const std::int64_t blocks = bf16_conv_blocks(conv);
  const std::int64_t weight_bytes = bf16_conv_packed_elements(conv) * 2;
  const std::int64_t lines = conv.images * conv.p;
  if (conv.source == Bf16Conv::kImage) set_tiles(conv);
  const bool is_image = conv.source == Bf16Conv::kImage;
  const std::int64_t units = is_image ? ceil_div(lines * conv.tiles_per_row, 2) : lines;
  const bool by_channels =
      threads > 1 && blocks >= threads && (weight_bytes > image_bytes || units < threads);
  const std::int64_t bands = by_channels || threads == 1 ? 1 : tasks_for(threads, units);
  if (is_image) {
    conv.bands = std::min(units, bands);
  } else {
    const bool is_large = weight_bytes > kLargeWeights;
    conv.band_rows = rows_per_band(conv, is_large ? kLargestCopyBytes : kCopyBytes,
                                   std::min(conv.p, ceil_div(lines, bands)));
    conv.bands = conv.images * ceil_div(conv.p, conv.band_rows);
    set_tiles(conv);
  }
  conv.parts = by_channels ? std::min(blocks, tasks_for(threads, blocks)) : 1;
  const std::int64_t run_bytes = weight_bytes > kLargeWeights ? kLargeRunBytes : kRunBytes;
  conv.block_run = std::max<std::int64_t>(1, run_bytes / (weight_bytes / blocks));
}

}  // namespace

Bf16Plan plan_bf16_conv(const ConvProblem& problem, const Primitive& primitive,
                        std::int64_t threads) {
  Bf16Plan plan;
  Bf16Conv& conv = plan.conv;
  conv.activation = activation_of(problem.epilogue);
  conv.is_src_f32 = !is_typed(primitive.src);
  conv.is_dst_f32 = !is_typed(primitive.dst);
  conv.images = problem.n;
  conv.c = problem.c;
  conv.k = problem.k;
  set_geometry(conv, problem);
  const bool is_planar = primitive.src == Layout::kNchw;
  conv.src_pixel = is_planar ? 1 : problem.c;
  conv.src_channel = is_planar ? problem.h * problem.w : 1;
  conv.src_row = problem.w * conv.src_pixel;
  conv.src_image = problem.c * problem.h * problem.w;
  set_source(plan, !is_unpadded(problem));
  divide(conv, problem.n * problem.c * problem.h * problem.w * 2, threads);
  set_offsets(plan);
  return plan;
}

void set_pixels(Bf16Conv& conv, std::int64_t pixels) {
  conv.q = conv.w = pixels;
  conv.bands = conv.parts = 1;
  set_tiles(conv);
}

namespace {

// Returns the place of each lane of each step in the weights of one output channel, -1 for a lane
// of zeros.
std::vector<std::int64_t> lane_places(const Bf16Plan& plan) {
  const Bf16Conv& conv = plan.conv;
  std::vector<std::int64_t> places;
  for (std::int64_t y = 0; y < conv.r; ++y) {
    for (std::int64_t x = 0; x < conv.s; ++x) {
      for (std::int64_t c = 0; c < conv.pixel; ++c)
        places.push_back(c < conv.c ? (c * conv.r + y) * conv.s + x : -1);
    }
  }
  return places;
}

}  // namespace

void pack_bf16_weights(const Bf16Plan& plan, const float* weights, std::uint16_t* packed,
                       const Threads& threads) {
  const Bf16Conv& conv = plan.conv;
  const std::vector<std::int64_t> places = lane_places(plan);
  const std::int64_t depth = conv.c * conv.r * conv.s;
  parallel_for(threads, bf16_conv_blocks(conv), 1, [&](std::int64_t begin, std::int64_t end) {
    std::uint16_t* to = packed + begin * conv.steps * conv.depth * kDepth;
    for (std::int64_t tile = begin * 2 * conv.steps; tile < end * 2 * conv.steps; ++tile) {
      const std::int64_t first = (tile / (2 * conv.steps) * 2 + tile % 2) * kTileRows;
      const std::int64_t* const lanes = places.data() + tile / 2 % conv.steps * conv.depth;
      for (std::int64_t i = 0; i < conv.depth * kTileRows; ++i) {  // [depth / 2][16][2]
        const std::int64_t k = first + i / 2 % kTileRows, place = lanes[i / 32 * 2 + i % 2];
        *to++ = k < conv.k && place >= 0 ? to_bf16(weights[k * depth + place]) : std::uint16_t{0};
      }
    }
  });
}

RunBf16Conv pick_bf16_conv(std::string_view isa, const Device& device) {
  return TORCHALGO_PICK_BF16_KERNEL(bf16_isa_beside(isa, device), isa, bf16_conv);
}

namespace {

void run(RunBf16Conv run_task, const Bf16Plan& plan, std::int64_t slices, const RunArgs& args,
         const Threads& threads) {
  Bf16Conv conv = plan.conv;
  conv.offsets = plan.offsets.data();
  conv.src = args.src[0];
  conv.weights = as_bf16(args.weights[0].weights);
  conv.bias = args.weights[0].bias;
  conv.residual = args.residual;
  conv.dst = args.dst;
  auto* const workspace = static_cast<char*>(args.workspace);
  const std::int64_t scratch_bytes = bf16_conv_scratch_bytes(conv);
  run_in_slices(threads, bf16_conv_tasks(conv), slices, [&](const auto& next, std::int64_t slice) {
    std::int64_t band = -1;
    for (std::int64_t task = next(); task >= 0; task = next())
      run_task(conv, task, workspace + slice * scratch_bytes, band);
  });
}

PlainKernel bind(RunBf16Conv run_task, const ConvProblem& conv, const Primitive& primitive,
                 std::int64_t threads) {
  const Bf16Plan plan = plan_bf16_conv(conv, primitive, threads);
  const std::int64_t bias_floats = bf16_conv_blocks(plan.conv) * 32;
  return {.workspace_bytes = bf16_conv_scratch_bytes(plan.conv) * threads,
          .packed = {{bf16_conv_packed_elements(plan.conv) / 2, bias_floats}},
          .packing = fmt::format("steps of {} in pixels of {}, runs of {} taps", plan.conv.depth,
                                 plan.conv.pixel, plan.taps),
          .pack =
              [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                  const Threads& pool) {
                pack_bf16_weights(plan, model[0].weights, as_bf16(to[0].weights), pool);
                pad_bias(model[0].bias, conv.k, to[0].bias, bias_floats);
              },
          .run = [=](const RunArgs& args,
                     const Threads& pool) { run(run_task, plan, threads, args, pool); }};
}

Offer offer_all_layouts(const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refuse_conv(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  if (conv->groups != 1) return {{}, fmt::format("needs 1 group, got {}", conv->groups)};
  Offer offer;
  const auto add = [&](Layout src, Layout dst) {
    Primitive primitive = {kName, src, dst};
    primitive.workspace_bytes =
        bf16_conv_scratch_bytes(plan_bf16_conv(*conv, primitive, device.threads).conv) *
        device.threads;
    offer.primitives.push_back(std::move(primitive));
  };
  add(Layout::kNhwcBf16, Layout::kNhwcBf16);
  add(Layout::kNhwcBf16, Layout::kNhwc);
  if (conv->c <= kMostImageChannels) {  // a network's first convolution
    add(Layout::kNchw, Layout::kNhwcBf16);
    add(Layout::kNhwc, Layout::kNhwcBf16);
  }
  return offer;
}

}  // namespace

// Makes the algorithm for bf16 with sums in f32. It is fast on processors with a bf16_isa only.
Algorithm bf16_conv(const std::string& isa) {
  return with_backward_data(with_bf16_if_fast(
      {.name = kName,
       .version = 2,
       .rounding = 1,
       .offer = offer_all_layouts,
       .bind = [isa](const Problem& problem, const Primitive& primitive, const Device& device) {
         return bind(pick_bf16_conv(isa, device), std::get<ConvProblem>(problem), primitive,
                     device.threads);
       }}));
}

}  // namespace torchalgo::cpu
