// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Functions for algorithms whose src and dst have the same layout.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/eltwise.h"
#include "ir/algorithm.h"
#include "ir/layout.h"

namespace torchalgo::cpu {

/// The shape of a [n, c, h, w] tensor as [groups, h * w, lanes]: (n * c, 1) for nchw, (n, c) for
/// nhwc of any type, (n * blocks, block size) for the blocked layouts.
struct LaneShape {
  std::int64_t groups = 1, lanes = 1;
};
[[nodiscard]] LaneShape lane_shape(Layout layout, std::int64_t n, std::int64_t c);

/// Returns the pointer to the element that lies `elements` behind the first one of a tensor.
[[nodiscard]] const float* advance(const float* tensor, Layout layout, std::int64_t elements);

/// Returns the least number of tasks that a thread should have, so that a small tensor stays on one
/// thread.
[[nodiscard]] std::int64_t grain_of(std::int64_t floats_per_task);

/// Returns the offer of the primitive `name` in each of the layouts, or a refusal if `dtype` is not
/// f32.
[[nodiscard]] Offer offer_f32(std::string_view name, DType dtype,
                              std::initializer_list<Layout> layouts);

/// Returns `algorithm` with its offer as offer_all. If the device has no bf16_isa, the new offer
/// leaves out primitives in nhwc.bf16, because then convolutions in f32 are faster.
[[nodiscard]] Algorithm with_bf16_if_fast(Algorithm algorithm);

/// Returns the bf16_isa of the device, or an empty one if `isa` is below AVX-512, as in a test.
[[nodiscard]] std::string_view bf16_isa_beside(std::string_view isa, const Device& device);

/// Calls run(args, begin, end) for ranges of at least `grain` tasks that cover [0, count).
template <class Args>
void parallel_for(const Threads& threads, std::int64_t count, std::int64_t grain,
                  void (*run)(const Args&, std::int64_t, std::int64_t), const Args& args) {
  parallel_for(threads, count, grain,
               [&](std::int64_t begin, std::int64_t end) { run(args, begin, end); });
}

/// Returns the one activation that the epilogue may hold. Returns nullopt if it holds anything
/// else.
[[nodiscard]] std::optional<kernels::Activation> only_activation(const Epilogue& epilogue);

/// Sets the pad lanes of `dst` in `layout` to zero. An activation that does not map 0 to 0 has
/// changed them.
using ClearPadLanes = decltype(&kernels::default_isa::clear_pad_lanes);
void zero_pad_lanes(ClearPadLanes kernel, float* dst, Layout layout, std::int64_t n, std::int64_t c,
                    std::int64_t pixels, const Threads& threads);

}  // namespace torchalgo::cpu
