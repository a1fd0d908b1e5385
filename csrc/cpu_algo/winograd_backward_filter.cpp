// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/winograd_backward_filter.h"

#include <fmt/format.h>

#include <string>

#include "cpu_algo/kernels/winograd_backward_filter.h"
#include "cpu_algo/winograd.h"
#include "provider/algorithm.h"
#include "standalone/conv.h"
#include "standalone/winograd.h"

namespace torchalgo::cpu {
namespace {

constexpr std::string_view kName = "cpu.winograd_f3x3_4x4";
// The tiles that are transformed at a time. With few of them they stay in L2, with many the sums
// are read and written less often. It depends on the shape which number is best.
constexpr std::int64_t kMostTiles[] = {64, 128, 256, 512};
constexpr std::int64_t kTileBytesLimit = std::int64_t{64} << 20;

std::string refusal_of(const ConvProblem& conv) {
  std::string refusal = refuse_backward_filter(conv);
  if (!refusal.empty()) return refusal;
  if (conv.r != 3 || conv.s != 3) {
    return fmt::format("needs a 3x3 filter, got {}x{}", conv.r, conv.s);
  }
  if (conv.stride_h != 1 || conv.stride_w != 1) {
    return fmt::format("needs stride 1, got {}x{}", conv.stride_h, conv.stride_w);
  }
  for (const auto refuse : {refuse_dilation, refuse_broken_groups}) {
    if (refusal = refuse(conv); !refusal.empty()) return refusal;
  }
  return {};
}

Offer offer_all(const Problem& problem, const Device& device) {
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(*conv); !refusal.empty()) return {{}, std::move(refusal)};
  Offer offer;
  for (const std::int64_t most : kMostTiles) {
    for (const Layout layout : {Layout::kNChw16c, Layout::kNhwc}) {
      const std::int64_t workspace =
          bind_winograd_backward_filter(*conv, layout, most, device.isa, device.threads)
              .workspace_bytes;
      offer.primitives.push_back({fmt::format("{}.t{}", kName, most), layout, layout, workspace});
    }
  }
  return offer;
}

// Offers the variants that may be the fastest.
Offer offer(const Problem& problem, const Device& device) {
  Offer all = offer_all(problem, device);
  if (!all.refusal.empty()) return all;
  const auto& conv = std::get<ConvProblem>(problem);
  if (std::string why = why_slow(kernels::kBackwardFilterTile, conv); !why.empty())
    return {{}, std::move(why)};
  const std::int64_t tiles = winograd_tiles(kernels::kBackwardFilterTile, conv);
  std::erase_if(all.primitives, [&](const Primitive& primitive) {
    const std::int64_t most = variant_number(primitive);
    // One block holds all tiles: equal to the variant of half the size.
    const bool is_equal = most > kMostTiles[0] && tiles <= most / 2;
    return is_equal || winograd_backward_filter_tile_bytes(conv, most) > kTileBytesLimit;
  });
  if (all.primitives.empty())
    all.refusal = fmt::format("needs more than {} MiB for its tiles", kTileBytesLimit >> 20);
  return all;
}

// Counts the products of the transformed tiles, as that of the forward algorithm.
Work least_work(const ConvProblem& conv) {
  const std::int64_t products =
      winograd_tiles(kernels::kBackwardFilterTile, conv) * kernels::kBackwardFilterTile.elements();
  return {2.0 * static_cast<double>(products) * static_cast<double>(conv.c / conv.groups * conv.k),
          least_bytes(conv)};
}

}  // namespace

// Makes the gradient with respect to weights by Winograd's F(3x3,4x4).
Algorithm winograd_backward_filter(const std::string& isa) {
  Algorithm algorithm;
  algorithm.name = kName;
  algorithm.rounding = 8;  // as cpu.winograd_f4x4_3x3, which has the same transforms
  algorithm.numerics = {"winograd"};
  algorithm.offer = offer;
  algorithm.offer_all = offer_all;
  algorithm.bind = [isa](const Problem& problem, const Primitive& primitive, const Device& device) {
    const auto& conv = std::get<ConvProblem>(problem);
    PlainKernel kernel = bind_winograd_backward_filter(
        conv, primitive.src, variant_number(primitive), isa, device.threads);
    kernel.least_work = [=] { return least_work(conv); };
    return kernel;
  };
  return algorithm;
}

}  // namespace torchalgo::cpu
