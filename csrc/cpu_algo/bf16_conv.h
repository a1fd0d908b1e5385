// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Convolutions in bf16, which kernels::Bf16Conv describes. They run alone or as one step of
// several.

#include <cstdint>
#include <string_view>
#include <vector>

#include "cpu_algo/kernels/bf16_conv.h"
#include "ir/device.h"
#include "ir/primitive.h"
#include "ir/problem.h"
#include "ir/threads.h"

namespace torchalgo::cpu {

/// The geometry of a convolution, without pointers.
struct Bf16Plan {
  kernels::Bf16Conv conv;
  std::int64_t taps = 1;              // columns of the filter that lie side by side in the source
  std::vector<std::int64_t> offsets;  // for conv.offsets
};

/// Returns the geometry for a primitive's layouts. refuse_conv() must accept the problem.
[[nodiscard]] Bf16Plan plan_bf16_conv(const ConvProblem& problem, const Primitive& primitive,
                                      std::int64_t threads);

/// Restricts a 1x1 convolution without stride that reads its image in place to `pixels` adjacent
/// pixels, in one task.
void set_pixels(kernels::Bf16Conv& conv, std::int64_t pixels);

/// Packs the weights [k, c, r, s]. It writes bf16_conv_packed_elements() elements.
void pack_bf16_weights(const Bf16Plan& plan, const float* weights, std::uint16_t* packed,
                       const Threads& threads);

using RunBf16Conv = decltype(&kernels::default_isa::bf16_conv);

/// Returns the kernel that runs on the device beside kernels for `isa`.
[[nodiscard]] RunBf16Conv pick_bf16_conv(std::string_view isa, const Device& device);

}  // namespace torchalgo::cpu
