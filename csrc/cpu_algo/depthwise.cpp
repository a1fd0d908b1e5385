// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/depthwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/same_layout.h"

namespace torchalgo::cpu {
namespace {

constexpr std::int64_t kBlock = 16;
// Some 10 us of work: a thread that has less costs more than it saves.
constexpr std::int64_t kLeastWork = 300'000;

// How the rows of a result are divided. If several threads share them, ranges have an even number
// of rows, as the kernel computes pairs of rows. The first range has one row more if the rows that
// read padding above the image are an odd number: a pair begins after them.
struct Division {
  std::int64_t count, ranges = 1, rows = 1, slices = 1, shift = 0;

  Division(std::int64_t of, std::int64_t row_work, std::int64_t padded_rows, std::int64_t threads)
      : count(of) {
    constexpr std::int64_t kRangesPerThread = 8;
    slices = std::clamp<std::int64_t>(count * row_work / kLeastWork, 1, threads);
    rows = slices == 1 ? count : std::max<std::int64_t>(1, count / (slices * kRangesPerThread));
    rows += slices == 1 ? 0 : rows % 2;
    ranges = ceil_div(count, rows);
    shift = padded_rows & 1;
  }
  // Returns the first row of a range.
  [[nodiscard]] std::int64_t first(std::int64_t range) const {
    return range == 0 ? 0 : std::min(range * rows + shift, count);
  }
};

// Channels that lie side by side in memory.
std::int64_t lanes_of(const ConvProblem& conv, Layout layout) {
  return untyped(layout) == Layout::kNhwc ? conv.c : kBlock;
}

}  // namespace

bool is_depthwise(const ConvProblem& conv) { return conv.groups == conv.c && conv.k == conv.c; }

kernels::Depthwise depthwise_args(const ConvProblem& conv, Layout layout) {
  const bool is_nhwc = untyped(layout) == Layout::kNhwc;
  kernels::Depthwise args;
  set_geometry(args, conv);
  args.blocks = is_nhwc ? 1 : channel_blocks(conv.c);
  args.pixel = lanes_of(conv, layout);
  args.pad_lanes = is_nhwc ? 0 : args.blocks * kBlock - conv.c;
  args.src_plane = args.h * args.w * args.pixel;
  args.dst_plane = args.p * args.q * args.pixel;
  args.group = conv.c / conv.groups;
  args.activation = activation_of(conv.epilogue);
  return args;
}

void pack_depthwise(const ConvProblem& conv, Layout layout, const float* weights, float* packed) {
  const std::int64_t lanes = lanes_of(conv, layout);
  const std::int64_t taps = conv.r * conv.s, group = conv.c / conv.groups;
  std::fill_n(packed, depthwise_weight_floats(conv, layout), 0.0F);
  for (std::int64_t k = 0; k < conv.k; ++k) {
    for (std::int64_t member = 0; member < group; ++member) {
      for (std::int64_t tap = 0; tap < taps; ++tap, ++weights)
        packed[((k / lanes * taps + tap) * group + member) * lanes + k % lanes] = *weights;
    }
  }
}

std::int64_t depthwise_weight_floats(const ConvProblem& conv, Layout layout) {
  return depthwise_bias_floats(conv, layout) * conv.r * conv.s * (conv.c / conv.groups);
}

std::int64_t depthwise_bias_floats(const ConvProblem& conv, Layout layout) {
  return untyped(layout) == Layout::kNhwc ? conv.c : channel_blocks(conv.c) * kBlock;
}

namespace {

PlainKernel bind(const ConvProblem& conv, Layout layout, DepthwiseRun run, std::int64_t threads) {
  const kernels::Depthwise sizes = depthwise_args(conv, layout);
  const std::int64_t rows = conv.n * sizes.blocks * sizes.p;
  const Division division(rows, sizes.q * sizes.pixel * conv.r * conv.s * sizes.group,
                          ceil_div(conv.pad_h, conv.stride_h), threads);
  const std::int64_t bias_floats = depthwise_bias_floats(conv, layout);
  return {.packed = {{depthwise_weight_floats(conv, layout), bias_floats}},
          .packing = std::string(to_string(untyped(layout))),
          .pack =
              [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                  const Threads&) {
                pack_depthwise(conv, layout, model[0].weights, to[0].weights);
                pad_bias(model[0].bias, conv.c, to[0].bias, bias_floats);
              },
          .run =
              [=](const RunArgs& args, const Threads& pool) {
                kernels::Depthwise call = sizes;
                call.src = args.src[0];
                call.weights = args.weights[0].weights;
                call.bias = args.weights[0].bias;
                call.residual = args.residual;
                call.dst = args.dst;
                run_ranges_in_slices(pool, division.ranges, division.slices,
                                     [&](std::int64_t begin, std::int64_t end, std::int64_t) {
                                       run(call, division.first(begin), division.first(end));
                                     });
              }};
}

Offer offer(const DepthwiseAlgorithm& depthwise, const Problem& problem, const Device&) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  std::string refusal = refuse_conv(*conv);
  if (refusal.empty()) refusal = depthwise.refuse(*conv);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  const std::string name(depthwise.name);
  Offer offer;
  offer.primitives.push_back({name, Layout::kNChw16c, Layout::kNChw16c});
  // In nhwc the last block of 16 channels overlaps the block before it. There is no masking, so 16
  // channels are needed.
  if (conv->c < 16) return offer;
  offer.primitives.push_back({name, Layout::kNhwc, Layout::kNhwc});
  if (depthwise.pick_bf16) offer.primitives.push_back({name, Layout::kNhwcBf16, Layout::kNhwcBf16});
  return offer;
}

}  // namespace

DepthwiseRun pick_bf16_depthwise(std::string_view isa, const Device& device) {
  return TORCHALGO_PICK_BF16_KERNEL(bf16_isa_beside(isa, device), isa, run_depthwise_bf16);
}

Algorithm make_depthwise(const DepthwiseAlgorithm& depthwise) {
  const auto bind_own = [depthwise](const Problem& problem, const Primitive& primitive,
                                    const Device& device) {
    const auto run = is_typed(primitive.src) ? depthwise.pick_bf16(device) : depthwise.run;
    PlainKernel kernel = bind(std::get<ConvProblem>(problem), primitive.src, run, device.threads);
    kernel.least_work = [=] { return direct_work(problem); };
    return kernel;
  };
  return with_backward_data(with_bf16_if_fast({.name = depthwise.name,
                                               .version = depthwise.version,
                                               .rounding = 1,
                                               .offer = std::bind_front(offer, depthwise),
                                               .bind = bind_own}));
}

namespace {

std::string refuse(const ConvProblem& conv) {
  if (conv.groups != conv.c)
    return fmt::format("needs groups equal to the {} channels, got {}", conv.c, conv.groups);
  if (conv.k != conv.c)
    return fmt::format("needs one output channel per channel, got {} of {}", conv.k, conv.c);
  return {};
}

}  // namespace

Algorithm depthwise(const std::string& isa) {
  return make_depthwise(
      {.name = "cpu.depthwise",
       .version = 6,
       .refuse = refuse,
       .run = TORCHALGO_PICK_KERNEL(isa, run_depthwise),
       .pick_bf16 = [isa](const Device& device) { return pick_bf16_depthwise(isa, device); }});
}

}  // namespace torchalgo::cpu
