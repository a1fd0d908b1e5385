// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// How a forward 2-D convolution becomes a kernels::ConvGemm: its geometry, its blocks and its
// packed weights. The rows that run that kernel alone or as a part of more share this.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "cpu_algo/kernels/conv_gemm.h"
#include "ir/layout.h"
#include "ir/primitive.h"
#include "ir/problem.h"
#include "provider/work.h"

namespace torchalgo::cpu {

/// The kernel's build for an instruction set.
struct ConvGemmBuild {
  decltype(&kernels::default_isa::conv_gemm) run;
  decltype(&kernels::default_isa::conv_gemm_scratch_bytes) scratch_bytes;
  bool has_wide_registers;
  bool strassen = false;  // what a row of its own runs; conv_gemm_build leaves it so
};
[[nodiscard]] ConvGemmBuild conv_gemm_build(std::string_view isa);

/// Floats of a block of the source that should stay in L2.
inline constexpr std::int64_t kCachedFloats = 384 * 1024 / 4;
/// Channels up to which a source is taken for a network's image: a block of 16 would be nearly
/// empty.
inline constexpr std::int64_t kMostImageChannels = 4;

/// Blocks of 16 output channels per panel when `blocks` are cut into panels: as many accumulators
/// as registers hold, in panels of one width where possible.
[[nodiscard]] int default_panel_blocks(std::int64_t blocks, const ConvGemmBuild& build);

/// The blocks that are cut: a group's, or of those the first half.
[[nodiscard]] std::int64_t blocks_to_cut(const ConvProblem& conv, bool strassen);

/// Sizes, strides and activation; without pointers, panels and blocks.
[[nodiscard]] kernels::ConvGemm conv_gemm_geometry(const ConvProblem& conv, Layout src, Layout dst);

/// Whether a convolution may run as kernels::strassen: 1x1 without strides, as many channels as can
/// repay the additions, and in nhwc whole blocks of 16.
[[nodiscard]] bool can_strassen(const ConvProblem& conv, Layout src, Layout dst);

/// Makes it do so; before its panels are chosen.
void use_strassen(kernels::ConvGemm& gemm);

/// conv_gemm_geometry of one image in a larger call, with the default panels.
[[nodiscard]] kernels::ConvGemm plan_part(const ConvProblem& conv, Layout src, Layout dst,
                                          const ConvGemmBuild& build, bool strassen = false);

/// direct_work, but seven of eight products in the convolutions that can_strassen.
[[nodiscard]] Work strassen_work(const Problem& problem, const Primitive& primitive);

/// A 1x1 convolution without strides sees an image (in nhwc: all images) as one row of pixels.
void flatten_conv_gemm(kernels::ConvGemm& gemm);

/// One row of pixels is cut anywhere, unless it must be padded.
[[nodiscard]] std::int64_t most_conv_gemm_blocks(const kernels::ConvGemm& gemm);

/// Blocks of K and of pixels that fit the caches; the same for any number of threads.
void set_conv_gemm_blocks(kernels::ConvGemm& gemm);

/// Weights kcrs as [groups][panel][plane, r, s, lane][panel's channels], zero where there is none;
/// of the geometry and its panel_blocks.
[[nodiscard]] at::Tensor pack_conv_gemm(const kernels::ConvGemm& gemm, const ConvProblem& conv,
                                        const at::Tensor& weights);
/// How many floats that is.
[[nodiscard]] std::int64_t packed_floats(const kernels::ConvGemm& gemm);

}  // namespace torchalgo::cpu
