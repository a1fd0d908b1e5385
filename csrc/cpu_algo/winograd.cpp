// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/winograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu_algo/backward_data.h"
#include "standalone/conv.h"
#include "standalone/winograd.h"

namespace torchalgo::cpu {
namespace {

using kernels::WinogradAxis;
using kernels::WinogradTile;

constexpr std::int64_t kScratchLimit = std::int64_t{2} << 20;  // per thread

// Returns the factor by which the transforms increase rounding errors. It doubles with each
// interpolation point if both axes are transformed, and with every second point if one axis is. The
// rule was found by comparison with f64.
double rounding_of(const WinogradTile& tile) {
  const auto points = [](const WinogradAxis& axis) { return axis.m + axis.r - axis.stride; };
  const bool is_nested = tile.h.r > 1 && tile.w.r > 1;
  const int most = std::max(points(tile.h), points(tile.w));
  return std::ldexp(1.0, is_nested ? most - 3 : most / 2 - 1);
}

// Returns the values of N of the variants `.tN`. A tile along one axis has few elements, so more
// tiles fit into L2.
std::span<const int> block_sizes(const WinogradTile& tile) {
  static constexpr int kNested[] = {14, 28, 56};
  static constexpr int kAlongOneAxis[] = {28, 56, 112};
  const bool is_nested = tile.h.r > 1 && tile.w.r > 1;
  return is_nested ? std::span(kNested) : std::span(kAlongOneAxis);
}

std::string refusal_of(const WinogradTile& tile, const ConvProblem& conv) {
  std::string refusal = refuse_conv(conv);
  if (!refusal.empty()) return refusal;
  if (conv.r != tile.h.r || conv.s != tile.w.r) {
    return fmt::format("needs a {}x{} filter, got {}x{}", tile.h.r, tile.w.r, conv.r, conv.s);
  }
  if (conv.stride_h != tile.h.stride || conv.stride_w != tile.w.stride) {
    return fmt::format("needs stride {}x{}, got {}x{}", tile.h.stride, tile.w.stride, conv.stride_h,
                       conv.stride_w);
  }
  for (const auto refuse : {refuse_dilation, refuse_broken_groups}) {
    if (refusal = refuse(conv); !refusal.empty()) return refusal;
  }
  return {};
}

Offer offer_all(const WinogradAlgorithm& winograd, const Problem& problem, const Device& device) {
  const WinogradTile& tile = winograd.tile;
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv == nullptr) return {{}, "needs a convolution"};
  if (std::string refusal = refusal_of(tile, *conv); !refusal.empty())
    return {{}, std::move(refusal)};
  Offer offer;
  for (const int size : block_sizes(tile)) {
    const std::int64_t bytes = winograd_scratch_bytes({tile, winograd.layout, size}, *conv);
    offer.primitives.push_back({fmt::format("{}.t{}", winograd.name, size), winograd.layout,
                                winograd.layout, device.threads * bytes});
  }
  return offer;
}

// Offers the variants that may be the fastest.
Offer offer(const WinogradAlgorithm& winograd, const Problem& problem, const Device& device) {
  Offer all = offer_all(winograd, problem, device);
  if (!all.refusal.empty()) return all;
  const auto& conv = std::get<ConvProblem>(problem);
  if (std::string why = why_slow(winograd.tile, conv); !why.empty()) return {{}, std::move(why)};
  const std::int64_t tiles = winograd_tiles(winograd.tile, conv);
  const std::int64_t least_bytes = all.primitives[0].workspace_bytes / device.threads;
  const std::int64_t least = block_sizes(winograd.tile)[0];
  std::erase_if(all.primitives, [&](const Primitive& primitive) {
    const std::int64_t most = variant_number(primitive);
    // One block holds all tiles: equal to the variant of half the size.
    const bool is_equal = most > least && tiles <= most / 2;
    return is_equal || primitive.workspace_bytes > device.threads * kScratchLimit;
  });
  if (all.primitives.empty()) {
    all.refusal = fmt::format("needs {} KiB of scratch per thread for {} channels, allows {} KiB",
                              least_bytes >> 10, conv.c, kScratchLimit >> 10);
  }
  return all;
}

// Counts the products of the transformed tiles. This is a lower bound: it leaves out the transforms
// and the rounding up to whole blocks of channels.
Work least_work(const WinogradTile& tile, const ConvProblem& conv) {
  const std::int64_t products = winograd_tiles(tile, conv) * tile.elements();
  return {2.0 * static_cast<double>(products) * static_cast<double>(conv.c / conv.groups * conv.k),
          least_bytes(conv)};
}

}  // namespace

std::string why_slow(const WinogradTile& tile, const ConvProblem& conv) {
  const std::vector<std::int64_t> dst = conv_dst_sizes(conv);
  const std::int64_t direct = conv.r * conv.s * conv.n * dst[2] * dst[3];
  const std::int64_t ours = winograd_tiles(tile, conv) * tile.elements();
  if (ours < direct) return {};
  return fmt::format("saves nothing on a result of {}x{}: {} multiplications instead of {}", dst[2],
                     dst[3], ours, direct);
}

Algorithm make_winograd(const WinogradAlgorithm& winograd, std::string_view isa) {
  Algorithm algorithm;
  algorithm.name = winograd.name;
  algorithm.version = winograd.version;
  algorithm.rounding = rounding_of(winograd.tile);
  // F(2,3) forms d0 - d2, d1 + d2, d2 - d1 and d1 - d3. Each of its two results uses only those of
  // the inputs that it reads, so a large value elsewhere does not reach it.
  const bool is_local = winograd.tile == kernels::WinogradTile{{2, 3}, {2, 3}};
  if (!is_local) algorithm.numerics = {"winograd"};
  algorithm.offer = [winograd](const Problem& problem, const Device& device) {
    return offer(winograd, problem, device);
  };
  algorithm.offer_all = [winograd](const Problem& problem, const Device& device) {
    return offer_all(winograd, problem, device);
  };
  algorithm.bind = [winograd, isa = std::string(isa)](
                       const Problem& problem, const Primitive& primitive, const Device& device) {
    const auto& conv = std::get<ConvProblem>(problem);
    const WinogradVariant variant = {winograd.tile, winograd.layout, variant_number(primitive)};
    PlainKernel kernel = bind_winograd(variant, conv, isa, device.threads);
    kernel.least_work = [=, tile = winograd.tile] { return least_work(tile, conv); };
    return kernel;
  };
  algorithm.packs_for_all_sizes = true;
  return with_backward_data(std::move(algorithm));
}

// Makes an algorithm for each tile of kernels::kWinogradTiles in nChw16c, for example
// cpu.winograd_f4x4_3x3.
Algorithms winograd(const std::string& isa) {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const WinogradTile& tile : kernels::kWinogradTiles) {
      names.push_back(fmt::format("cpu.winograd_f{}x{}_{}x{}{}", tile.h.m, tile.w.m, tile.h.r,
                                  tile.w.r, tile.h.stride == 2 ? "s2" : ""));
    }
    return names;
  }();
  Algorithms all;
  for (const WinogradTile& tile : kernels::kWinogradTiles)
    all.push_back(make_winograd({.name = kNames[all.size()], .version = 5, .tile = tile}, isa));
  return all;
}

}  // namespace torchalgo::cpu
