// SPDX-License-Identifier: BSD-3-Clause

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/conv_im2col.h"

namespace torchalgo::cpu {
namespace {

using kernels::ConvIm2col;

constexpr std::int64_t kBlockDepth = 512;  // 14 rows of weights stay in L1
constexpr std::int64_t kBlockFloats = 256 * 1024 / 4;

struct Build {
  decltype(&kernels::default_isa::conv_im2col) run;
  decltype(&kernels::default_isa::conv_im2col_scratch_bytes) scratch_bytes;
};

ConvIm2col plan(const ConvProblem& conv) {
  ConvIm2col args;
  args.images = conv.n;
  set_geometry(args, conv);
  args.c = conv.c / conv.groups;
  args.k = conv.k / conv.groups;
  args.groups = conv.groups;
  args.activation = activation_of(conv.epilogue);
  const std::int64_t depth = args.c * args.r * args.s;
  args.block_depth = ceil_div(depth, ceil_div(depth, kBlockDepth));
  args.weights_row = depth % 128 == 0 ? depth + 16 : depth;
  args.blocks_per_image = ceil_div(args.p * args.q * args.block_depth, kBlockFloats);
  return args;
}

// Divides the pixels among the threads if each of them gets many. Otherwise divides the output
// channels.
void set_parts(ConvIm2col& args, std::int64_t threads) {
  constexpr std::int64_t kManyPixels = 256;
  const std::int64_t pixels = args.images * args.p * args.q;
  if (pixels / threads < kManyPixels && args.k >= 16 * threads) {
    args.channel_parts = threads;
    return;
  }
  while (args.images * args.blocks_per_image % threads != 0 && args.blocks_per_image < pixels) {
    ++args.blocks_per_image;
  }
}

Offer offer(const Build& build, const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refuse_conv(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  return {{{"cpu.im2col_gemm", Layout::kNchw, Layout::kNchw,
            build.scratch_bytes(plan(*conv)) * device.threads}},
          {}};
}

void run(const Build& build, const ConvIm2col& sizes, std::int64_t slice_bytes, std::int64_t slices,
         const RunArgs& args, const Threads& threads) {
  ConvIm2col conv = sizes;
  conv.src = args.src[0];
  conv.weights = args.weights[0].weights;
  conv.bias = args.weights[0].bias;
  conv.residual = args.residual;
  conv.dst = args.dst;
  auto* workspace = static_cast<char*>(args.workspace);
  run_ranges_in_slices(threads, conv.images * conv.blocks_per_image * conv.channel_parts, slices,
                       [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                         build.run(conv, begin, end, workspace + slice * slice_bytes);
                       });
}

PlainKernel bind(const Build& build, const Problem& problem, const Primitive&,
                 const Device& device) {
  const auto& conv = std::get<ConvProblem>(problem);
  const std::int64_t slices = device.threads;
  ConvIm2col sizes = plan(conv);
  const std::int64_t row = sizes.weights_row, k = conv.k;
  const std::int64_t own_row = conv.c / conv.groups * conv.r * conv.s;
  const std::int64_t slice_bytes = build.scratch_bytes(sizes);
  set_parts(sizes, slices);
  return {.workspace_bytes = slice_bytes * slices,
          .packed = {{k * row, 0}},
          .packing = "rows",
          .pack =
              [=](std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                  const Threads&) {
                for (std::int64_t i = 0; i < k; ++i)
                  pad_bias(model[0].weights + i * own_row, own_row, to[0].weights + i * row, row);
              },
          .run =
              [=](const RunArgs& args, const Threads& threads) {
                run(build, sizes, slice_bytes, slices, args, threads);
              }};
}

}  // namespace

Algorithm im2col_gemm(const std::string& isa) {
  const Build build = {TORCHALGO_PICK_KERNEL(isa, conv_im2col),
                       TORCHALGO_PICK_KERNEL(isa, conv_im2col_scratch_bytes)};
  return with_backward_data({.name = "cpu.im2col_gemm",
                             .version = 4,
                             .rounding = 1,
                             .offer = std::bind_front(offer, build),
                             .bind = std::bind_front(bind, build)});
}

}  // namespace torchalgo::cpu
