// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Turns a forward 2-D convolution into a kernels::ConvGemm: its geometry, its blocks and its packed
// weights. Algorithms that run this kernel alone or as one step of several share these functions.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu_algo/kernels/conv_gemm.h"
#include "ir/algorithm.h"
#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// The kernel that was built for one instruction set.
struct ConvGemmBuild {
  decltype(&kernels::default_isa::conv_gemm) run;
  decltype(&kernels::default_isa::conv_gemm_scratch_bytes) scratch_bytes;
  bool has_wide_registers;
  bool strassen = false;  // runs kernels::strassen; conv_gemm_build leaves it false
};
[[nodiscard]] ConvGemmBuild conv_gemm_build(std::string_view isa);

/// Returns the fewest pixels of a block that is only made so that threads can share the work: some
/// register tiles, which read the same weights from L1.
[[nodiscard]] constexpr std::int64_t fewest_pixels(const ConvGemmBuild& build) {
  constexpr std::int64_t kTiles = 8;
  return kTiles * (build.has_wide_registers ? 14 : 6);
}

/// Floats of a block of the source that should stay in L2.
inline constexpr std::int64_t kCachedFloats = 384 * 1024 / 4;
/// A source with at most this many channels counts as the input image of a network, whose blocks of
/// 16 channels would be nearly empty.
inline constexpr std::int64_t kMostImageChannels = 4;

/// Returns how many blocks of 16 output channels one panel holds. `blocks` is the number of blocks
/// to divide. A panel has as many accumulators as fit the registers; panels are equally wide where
/// possible.
[[nodiscard]] int default_panel_blocks(std::int64_t blocks, const ConvGemmBuild& build);

/// Returns how many blocks of 16 output channels are divided into panels: all of one group, or half
/// of them for Strassen, which multiplies halves of the matrix.
[[nodiscard]] std::int64_t blocks_to_cut(const ConvProblem& conv, bool strassen);

/// Returns sizes, strides and activation, without pointers, panels and blocks.
[[nodiscard]] kernels::ConvGemm conv_gemm_geometry(const ConvProblem& conv, Layout src, Layout dst);

/// Returns true if kernels::strassen can run the convolution: 1x1 without strides, enough channels
/// to repay the additions, and in nhwc whole blocks of 16.
[[nodiscard]] bool can_strassen(const ConvProblem& conv, Layout src, Layout dst);

/// Makes `gemm` run kernels::strassen. Call it before the panels are chosen.
void use_strassen(kernels::ConvGemm& gemm);

/// Returns the geometry of one image, with the default panels, for a kernel of several steps.
[[nodiscard]] kernels::ConvGemm plan_part(const ConvProblem& conv, Layout src, Layout dst,
                                          const ConvGemmBuild& build, bool strassen = false);

/// Treats all pixels of an image as one long row, if the convolution is 1x1 without strides. In
/// nhwc the row spans all images. Leaves other convolutions as they are.
void flatten_conv_gemm(kernels::ConvGemm& gemm);

/// Returns the largest number of blocks of pixels that an image can be divided into: its rows, or
/// the pixels of a single row if the convolution has no padding.
[[nodiscard]] std::int64_t most_conv_gemm_blocks(const kernels::ConvGemm& gemm);

/// Sets blocks of K and of pixels that fit the caches. They do not depend on the threads.
void set_conv_gemm_blocks(kernels::ConvGemm& gemm);

/// Packs kcrs weights as [groups][panel][plane, r, s, lane][channels of the panel]. A plane is a
/// block of input channels, a lane one channel in it. Positions without a weight are zero. `gemm`
/// and its panel_blocks set the sizes.
void pack_conv_gemm(const kernels::ConvGemm& gemm, const ConvProblem& conv, const float* weights,
                    float* packed, const Threads& threads);
/// Returns the floats that pack_conv_gemm writes.
[[nodiscard]] std::int64_t packed_floats(const kernels::ConvGemm& gemm);

/// Returns direct_work() with seven of eight products in the convolutions that can_strassen().
[[nodiscard]] Work strassen_work(const Problem& problem);

/// An algorithm whose kernel is kernels::conv_gemm. The kernel runs any forward 2-D convolution
/// from nchw, nhwc or nChw16c to nhwc or nChw16c. It also runs gradients with respect to src that
/// are forward convolutions. Such algorithms differ in the problems that they offer.
struct ConvGemmAlgorithm {
  std::string_view name;
  int version = 6;
  std::vector<std::pair<Layout, Layout>> layouts;            // src and dst of its primitives
  PlanningFunction<std::string(const ConvProblem&)> refuse;  // the reason, or empty if it can run
  /// Widths of panels that are offered as variants if the instruction set has wide registers and
  /// they divide the output channels in another way than the default width. The variant <name>.bN
  /// has panels of at most N blocks of 16 channels.
  std::vector<int> widths = {};
  bool strassen = false;  // runs kernels::strassen; offers only what can_strassen accepts
};
[[nodiscard]] Algorithm make_conv_gemm(const ConvGemmAlgorithm& own, std::string_view isa);

}  // namespace torchalgo::cpu
