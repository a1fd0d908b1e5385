// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// How a forward 2-D convolution becomes a kernels::ConvGemm: its geometry, its blocks and its
// packed weights. The rows that run that kernel alone or as a part of more share this.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "cpu_algo/kernels/conv_gemm.h"
#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// The kernel's build for an instruction set.
struct ConvGemmBuild {
  decltype(&kernels::default_isa::conv_gemm) run;
  decltype(&kernels::default_isa::conv_gemm_scratch_bytes) scratch_bytes;
  bool has_wide_registers;
};
[[nodiscard]] ConvGemmBuild conv_gemm_build(std::string_view isa);

/// Floats of a block of the source that should stay in L2.
inline constexpr std::int64_t kCachedFloats = 384 * 1024 / 4;

/// Blocks of 16 output channels per panel: as many accumulators as registers hold, in panels of one
/// width where possible.
[[nodiscard]] int default_panel_blocks(const ConvProblem& conv, const ConvGemmBuild& build);

/// Sizes, strides and activation; without pointers, panels and blocks.
[[nodiscard]] kernels::ConvGemm conv_gemm_geometry(const ConvProblem& conv, Layout src, Layout dst);

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
