// SPDX-License-Identifier: BSD-3-Clause

#include <algorithm>

#include "base/error.h"
#include "cpu_algo/backward_data.h"
#include "cpu_algo/kernels/conv_im2col.h"
#include "cpu_algo/padded_tensors.h"

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
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  ConvIm2col args;
  args.images = conv.n;
  args.h = conv.h;
  args.w = conv.w;
  args.p = dst[2];
  args.q = dst[3];
  args.c = conv.c / conv.groups;
  args.k = conv.k / conv.groups;
  args.groups = conv.groups;
  args.r = conv.r;
  args.s = conv.s;
  args.stride_h = conv.stride_h;
  args.stride_w = conv.stride_w;
  args.pad_h = conv.pad_h;
  args.pad_w = conv.pad_w;
  args.dilation_h = conv.dilation_h;
  args.dilation_w = conv.dilation_w;
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
  if (conv == nullptr) return {{}, "is a convolution"};
  if (std::string refusal = refuse_conv(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  return {{{"cpu.im2col_gemm", Layout::kNchw, Layout::kNchw,
            build.scratch_bytes(plan(*conv)) * device.threads}},
          {}};
}

at::Tensor run(const Build& build, const ConvIm2col& sizes, std::int64_t slice_bytes,
               std::int64_t slices, const KernelArgs& args) {
  ConvIm2col conv = sizes;
  conv.src = args.src[0].const_data_ptr<float>();
  const auto& [weights, bias] = args.packed[0];
  conv.weights = weights.const_data_ptr<float>();
  if (bias.defined()) conv.bias = bias.const_data_ptr<float>();
  if (args.residual.defined()) conv.residual = args.residual.const_data_ptr<float>();
  conv.dst = args.dst.mutable_data_ptr<float>();
  auto* workspace = static_cast<char*>(args.workspace);
  run_ranges_in_slices(torch_threads(), conv.images * conv.blocks_per_image * conv.channel_parts,
                       slices, [&](std::int64_t begin, std::int64_t end, std::int64_t slice) {
                         build.run(conv, begin, end, workspace + slice * slice_bytes);
                       });
  return args.dst;
}

Packed pack(const ConvProblem& conv, std::int64_t weights_row, const Weights& weights) {
  const at::Tensor rows = weights[0].weights.reshape({conv.k, -1});
  at::Tensor padded = zero_floats({conv.k, weights_row});
  padded.narrow(1, 0, rows.size(1)).copy_(rows);
  const bool has_bias = has(conv.epilogue, PostOp::kBias);
  return {{padded, has_bias ? weights[0].bias.contiguous() : at::Tensor()}};
}

Kernel prepare(const Build& build, const Problem& problem, const Primitive& primitive,
               const Device& device) {
  const auto& conv = std::get<ConvProblem>(problem);
  const std::int64_t threads = device.threads;
  ConvIm2col sizes = plan(conv);
  const std::int64_t row = sizes.weights_row;
  const std::int64_t slice_bytes = build.scratch_bytes(sizes);
  set_parts(sizes, threads);
  return {
      .problem = problem,
      .primitive = with_workspace(primitive, slice_bytes * threads),
      .run = [=](const KernelArgs& args) { return run(build, sizes, slice_bytes, threads, args); },
      .pack = [=](const Weights& weights) { return pack(conv, row, weights); },
      // The bias is not packed: the model's own tensor is used.
      .packed_bytes = [k = conv.k, row] { return k * row * std::int64_t{sizeof(float)}; }};
}

}  // namespace

Algorithm im2col_gemm(const std::string& isa) {
  const Build build = {TORCHALGO_PICK_KERNEL(isa, conv_im2col),
                       TORCHALGO_PICK_KERNEL(isa, conv_im2col_scratch_bytes)};
  Algorithm algorithm;
  algorithm.name = "cpu.im2col_gemm";
  algorithm.rounding = 1;
  algorithm.version = 4;
  algorithm.offer = [build](const Problem& problem, const Device& device) {
    return offer(build, problem, device);
  };
  algorithm.prepare = [build](const Problem& problem, const Primitive& primitive,
                              const Device& device) {
    return prepare(build, problem, primitive, device);
  };
  algorithm.packs_for_all_sizes = true;
  return with_backward_data(std::move(algorithm));
}

}  // namespace torchalgo::cpu
