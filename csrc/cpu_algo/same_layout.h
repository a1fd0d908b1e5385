// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// What the algorithms share whose src and dst lie in one layout.

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

/// The primitive `name` in each of the layouts; a refusal unless `dtype` is f32.
[[nodiscard]] Offer offer_f32(std::string_view name, DType dtype,
                              std::initializer_list<Layout> layouts);

/// The epilogue as the one activation that it may hold; nothing if it holds more.
[[nodiscard]] std::optional<kernels::Activation> only_activation(const Epilogue& epilogue);

/// A kernel's source pointer of a float tensor.
[[nodiscard]] const float* floats(const at::Tensor& tensor);

/// Makes the pad lanes of `dst` in `layout` zero, which an activation that does not map 0 to 0 has
/// written.
using ClearPadLanes = decltype(&kernels::default_isa::clear_pad_lanes);
void zero_pad_lanes(ClearPadLanes kernel, const at::Tensor& dst, Layout layout, std::int64_t n,
                    std::int64_t c, std::int64_t pixels);

}  // namespace torchalgo::cpu
