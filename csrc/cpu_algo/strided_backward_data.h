// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ir/algorithm.h"

namespace torchalgo::cpu {

/// The pixels of a gradient with respect to src whose row is `row` modulo stride_h and whose column
/// is `column` modulo stride_w. Only every stride_h-th row of taps, from `first_r` on, and every
/// stride_w-th column contribute to them.
struct StridedPart {
  std::int64_t row = 0, column = 0;
  std::int64_t rows = 0, columns = 0;  // of the result
  std::int64_t first_r = 0, first_s = 0;
  /// The forward convolution of stride 1 that computes them from diff_dst, or nullopt if no tap
  /// contributes. Its weights are those taps, turned by 180 degrees, with c and k exchanged.
  std::optional<ConvProblem> twin;
};

/// Returns the parts of `conv`, a kBackwardData problem, in the order of rows and columns. Returns
/// none if `conv` is 3-D or dilated, has a residual, or if a part is no forward convolution.
[[nodiscard]] std::vector<StridedPart> strided_parts(const ConvProblem& conv);

/// `offer` or `offer_all` of an Algorithm.
using OfferOf = std::function<Offer(const Problem&, const Device&)>;

/// Returns the primitives that compute `conv`, a kBackwardData problem with a stride, by one run of
/// what `forward` offers for each part.
[[nodiscard]] Offer offer_strided_backward_data(const OfferOf& forward, const ConvProblem& conv,
                                                const Device& device);
/// `bind` of an Algorithm.
using BindOf = std::function<PlainKernel(const Problem&, const Primitive&, const Device&)>;
[[nodiscard]] PlainKernel bind_strided_backward_data(const BindOf& forward, const ConvProblem& conv,
                                                     const Primitive& primitive,
                                                     const Device& device);

}  // namespace torchalgo::cpu
