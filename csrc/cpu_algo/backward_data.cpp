// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/backward_data.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "cpu_algo/strided_backward_data.h"
#include "ir/arithmetic.h"

namespace torchalgo::cpu {
namespace {

const ConvProblem* as_backward_data(const Problem& problem) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  return conv != nullptr && conv->direction == Direction::kBackwardData ? conv : nullptr;
}

// Swaps src and dst: the equivalent forward convolution reads the tensor that `problem` calls dst.
Primitive exchanged(Primitive primitive) {
  std::swap(primitive.src, primitive.dst);
  return primitive;
}

Offer offer_backward_data(const OfferOf& forward, const ConvProblem& conv, const Device& device) {
  if (conv.stride_h != 1 || conv.stride_w != 1) {
    return offer_strided_backward_data(forward, conv, device);
  }
  const auto twin = as_forward(conv);
  if (!twin) {
    return {{},
            "runs bwd_data as a forward convolution, which needs no more padding than dilation * "
            "(filter - 1)"};
  }
  Offer offer = forward(*twin, device);
  for (Primitive& primitive : offer.primitives) primitive = exchanged(std::move(primitive));
  return offer;
}

OfferOf with_backward_data(OfferOf forward) {
  return [forward = std::move(forward)](const Problem& problem, const Device& device) {
    const ConvProblem* conv = as_backward_data(problem);
    return conv != nullptr ? offer_backward_data(forward, *conv, device) : forward(problem, device);
  };
}

}  // namespace

void turn_filters(const FilterTaps& taps, const float* weights, float* turned) {
  const std::int64_t k = taps.k / taps.groups, c = taps.c / taps.groups;
  for (std::int64_t group = 0; group < taps.groups; ++group) {
    for (std::int64_t to = 0; to < c; ++to) {
      for (std::int64_t from = 0; from < k; ++from) {
        const float* const filter = weights + ((group * k + from) * c + to) * taps.r * taps.s;
        for (std::int64_t y = taps.rows - 1; y >= 0; --y) {
          for (std::int64_t x = taps.columns - 1; x >= 0; --x, ++turned) {
            *turned =
                filter[(taps.first_r + y * taps.step_r) * taps.s + taps.first_s + x * taps.step_s];
          }
        }
      }
    }
  }
}

std::optional<ConvProblem> as_forward(const ConvProblem& conv) {
  TORCHALGO_ASSERT(conv.direction == Direction::kBackwardData);
  ConvProblem twin = conv;
  twin.direction = Direction::kForward;
  const auto dst = conv_dst_sizes(conv);
  twin.c = conv.k;
  twin.k = conv.c;
  twin.h = dst[dst.size() - 2];
  twin.w = dst[dst.size() - 1];
  twin.pad_h = conv.dilation_h * (conv.r - 1) - conv.pad_h;
  twin.pad_w = conv.dilation_w * (conv.s - 1) - conv.pad_w;
  const bool has_twin = !conv.is_3d && conv.stride_h == 1 && conv.stride_w == 1 &&
                        twin.pad_h >= 0 && twin.pad_w >= 0 && twin.h >= 1 && twin.w >= 1 &&
                        refuse_sizes(twin).empty();
  return has_twin ? std::optional(twin) : std::nullopt;
}

Algorithm with_backward_data(Algorithm forward) {
  Algorithm both = forward;
  both.offer = with_backward_data(std::move(both.offer));
  if (both.offer_all) both.offer_all = with_backward_data(std::move(both.offer_all));
  both.bind = [inner = std::move(forward.bind)](const Problem& problem, const Primitive& primitive,
                                                const Device& device) -> PlainKernel {
    const ConvProblem* conv = as_backward_data(problem);
    if (conv == nullptr) return inner(problem, primitive, device);
    if (conv->stride_h != 1 || conv->stride_w != 1) {
      return bind_strided_backward_data(inner, *conv, primitive, device);
    }
    PlainKernel kernel = inner(*as_forward(*conv), exchanged(primitive), device);
    kernel.pack = [pack = std::move(kernel.pack), taps = all_taps(*conv)](
                      std::span<const LayerPointers> model, std::span<const PackedPointers> to,
                      const Threads& threads) {
      std::vector<float> turned(static_cast<std::size_t>(taps.floats()));
      turn_filters(taps, model[0].weights, turned.data());
      const LayerPointers layer = {turned.data(), model[0].bias};
      pack({&layer, 1}, to, threads);
    };
    return kernel;
  };
  return both;
}

}  // namespace torchalgo::cpu
