// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>
#include <utility>
#include <variant>

#include "ir/algorithm.h"
#include "ir/layout.h"
#include "provider/kernel.h"
#include "provider/tensor_shape.h"

namespace torchalgo {

/// Returns `tensor` with exactly the strides of dense_strides(): itself if it has them, a view if
/// its memory already lies that way, else a copy.
///
/// If c = 1 or h = w = 1, a tensor is contiguous and channels_last at once, and ATen guesses its
/// memory format from the strides. If these do not follow the plan, an op may return another format
/// than the planned one.
[[nodiscard]] at::Tensor to_strided(const at::Tensor& tensor, Layout layout);

/// Returns the offer of an algorithm that keeps the layout: nchw to nchw and nhwc to nhwc.
[[nodiscard]] Offer offer_strided(std::string_view name);

/// Returns the same offer, and nhwc.bf16 to nhwc.bf16 for a problem in f32 on a CPU with a
/// bf16_isa. Without one, ATen's operations in bf16 are slower than those in f32.
[[nodiscard]] Offer offer_with_bf16(std::string_view name, const Problem& problem,
                                    const Device& device);

/// Returns the kernel that calls `run` with the model's own weights, and gives its result the
/// strides of primitive.dst.
[[nodiscard]] Kernel strided_kernel(const Problem& problem, const Primitive& primitive,
                                    std::function<at::Tensor(const KernelArgs&)> run);

/// Makes the algorithm of ATen whose strided_kernel() for a problem of type P calls `run`.
template <class P>
[[nodiscard]] Algorithm strided_algorithm(std::string_view name,
                                          std::function<Offer(const Problem&, const Device&)> offer,
                                          at::Tensor (*run)(const P&, const Primitive&,
                                                            const KernelArgs&)) {
  return {.name = name,
          .runs_on_cuda = true,
          .offer = std::move(offer),
          .prepare =
              [run](const Problem& problem, const Primitive& primitive, const Device&) {
                return strided_kernel(problem, primitive,
                                      std::bind_front(run, std::get<P>(problem), primitive));
              },
          .is_fallback = true};
}

}  // namespace torchalgo
