// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Functions for algorithms whose src and dst have the same layout.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/eltwise.h"
#include "ir/layout.h"
#include "provider/algorithm.h"
#include "standalone/lanes.h"

namespace torchalgo::cpu {

/// Returns the offer of the primitive `name` in each of the layouts, or a refusal if `dtype` is not
/// f32.
[[nodiscard]] Offer offer_f32(std::string_view name, DType dtype,
                              std::initializer_list<Layout> layouts);

/// Returns the one activation that the epilogue may hold. Returns nullopt if it holds anything
/// else.
[[nodiscard]] std::optional<kernels::Activation> only_activation(const Epilogue& epilogue);

/// Sets the pad lanes of `dst` in `layout` to zero. An activation that does not map 0 to 0 has
/// changed them.
using ClearPadLanes = decltype(&kernels::default_isa::clear_pad_lanes);
void zero_pad_lanes(ClearPadLanes kernel, float* dst, Layout layout, std::int64_t n, std::int64_t c,
                    std::int64_t pixels, const Threads& threads);

}  // namespace torchalgo::cpu
