// SPDX-License-Identifier: BSD-3-Clause
#pragma once

// Winograd's minimal filtering on nChw16c or nhwc tensors. F(m, r) computes m results of a filter
// with r taps from m + r - 1 pixels. It needs m + r - 1 multiplications instead of m r. A tile
// nests one F along h and one along w. A block of tiles is transformed into scratch V. V is
// multiplied with each panel of the transformed weights into scratch M. M is transformed back with
// the epilogue while it lies in L2. Source: Lavin & Gray 2016, CVPR, pp. 4013-4021,
// doi:10.1109/CVPR.2016.435.

#include <cstdint>

#include "cpu_algo/kernels/activation.h"
#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// The algorithm F(m, r) along one axis. F(1, 1) leaves the axis as it is. With stride 2, every
/// second pixel is multiplied with every second tap. So it is F(m, r - 1) over the even pixels, and
/// m products of the odd pixels with the middle one of 3 taps.
struct WinogradAxis {
  int m = 1, r = 1, stride = 1;
  /// Returns the pixels of a tile, which are also the elements of its transform. With stride 2,
  /// those of the even pixels come first.
  [[nodiscard]] constexpr int size() const { return stride * (m - 1) + r; }
  /// Returns the elements of a transformed filter. With stride 2, the odd pixels share one element.
  [[nodiscard]] constexpr int weights() const { return stride == 1 ? size() : m + 2; }
  /// Returns the element of the filter that element i of a tile is multiplied with.
  [[nodiscard]] constexpr int weight_of(int i) const { return i < weights() ? i : weights() - 1; }
  bool operator==(const WinogradAxis&) const = default;
};

/// A tile, F(h.m x w.m, h.r x w.r). Along an axis with r taps a transform has 4, 6, 8 or 10
/// elements, or 1.
struct WinogradTile {
  WinogradAxis h, w;
  [[nodiscard]] constexpr int elements() const { return h.size() * w.size(); }
  [[nodiscard]] constexpr int weights() const { return h.weights() * w.weights(); }
  bool operator==(const WinogradTile&) const = default;
};

/// The tiles for which there are kernels.
constexpr WinogradTile kWinogradTiles[] = {
    {{2, 3}, {2, 3}}, {{4, 3}, {4, 3}}, {{6, 3}, {6, 3}}, {{3, 3, 2}, {3, 3, 2}},
    {{4, 5}, {4, 5}}, {{2, 7}, {2, 7}}, {{1, 1}, {4, 3}}, {{4, 3}, {1, 1}},
    {{1, 1}, {4, 5}}, {{4, 5}, {1, 1}}, {{1, 1}, {4, 7}}, {{4, 7}, {1, 1}},
};

/// A transform's interpolation points: 0, the pairs +-p, and infinity.
struct WinogradPoints {
  static constexpr int kMaxPairs = 4;
  int pairs = 0;
  double p[kMaxPairs] = {};
};

// All constants of the transforms are exact in binary. The relative L2 error to f64 with 64 and
// with 512 channels of 28x28, inputs as after a ReLU, is
// - F(2x2,3x3): 2.4e-7 and 6.4e-7, less with stride 2;
// - F(4x4,3x3): 7.4e-7 and 2.0e-6, twice that with the textbook's points +-1, +-2;
// - 8 elements on both axes: 2.9e-6 to 3.7e-6 and 7.5e-6 to 1.0e-5;
// - 8 elements on one axis: 6.2e-7 and 1.7e-6;
// - 10 elements on one axis: 1.6e-6 and 4.3e-6.
constexpr WinogradPoints winograd_points(int size) {
  switch (size) {
    case 4:
      return {1, {1}};
    case 6:
      return {2, {0.75, 1.5}};
    case 8:
      return {3, {0.5, 1, 2}};
    case 10:
      return {4, {0.5, 0.75, 1.25, 2.25}};
    default:
      return {};
  }
}

/// The strides of src or dst: floats from an image, a block of 16 channels and a pixel to the next
/// one. Also the number of lanes of the last block that belong to the tensor, which is 16 in
/// nChw16c.
struct WinogradSide {
  std::int64_t image = 0, block = 0, pixel = 16;
  std::int64_t last_lanes = 16;
};

/// A convolution without dilation, with the filter and stride of its tile. If there are several
/// groups, each of them has whole blocks of 16 input and output channels.
struct Winograd {
  const float* src = nullptr;  // [n, c_blocks, h, w, 16] or [n, h, w, c]
  /// Per panel [weights(), c_blocks / groups * 16, blocks of the panel * 16].
  const float* weights = nullptr;
  const float* bias = nullptr;      // [k_blocks, 16]; zeros if the problem has none
  const float* residual = nullptr;  // laid out as dst, or null
  float* dst = nullptr;             // [n, k_blocks, p, q, 16] or [n, p, q, k]
  std::int64_t c_blocks = 1, k_blocks = 1, groups = 1;
  WinogradSide src_side, dst_side;
  std::int64_t panel_blocks = 1;  // of 16 output channels; a group's last panel may have fewer
  std::int64_t pad_lanes = 0;     // of dst's last block in nChw16c, left zero
  std::int64_t h = 1, w = 1, p = 1, q = 1, pad_h = 0, pad_w = 0;
  std::int64_t tiles_h = 1, tiles_w = 1;  // of p rows and q columns
  Activation activation = Activation::kNone;
};

/// A panel: output blocks [begin, begin + count) of one group.
struct WinogradPanel {
  std::int64_t group = 0, begin = 0, count = 0;
};

constexpr std::int64_t winograd_panels(const Winograd& conv) {
  const std::int64_t group_blocks = conv.k_blocks / conv.groups;
  return conv.groups * ((group_blocks + conv.panel_blocks - 1) / conv.panel_blocks);
}

constexpr WinogradPanel winograd_panel(const Winograd& conv, std::int64_t panel) {
  const std::int64_t group_blocks = conv.k_blocks / conv.groups;
  const std::int64_t group_panels = winograd_panels(conv) / conv.groups;
  const std::int64_t group = panel / group_panels;
  const std::int64_t begin = panel % group_panels * conv.panel_blocks;
  const std::int64_t left = group_blocks - begin;
  return {group, group * group_blocks + begin, left < conv.panel_blocks ? left : conv.panel_blocks};
}

/// The tiles [begin, begin + count) of all n * tiles_h * tiles_w tiles, rows first.
struct TileBlock {
  std::int64_t begin = 0, count = 0;
};

/// Floats of V: [elements][c_blocks][count][16], with a gap between elements so that they do not
/// fall into the same cache sets.
constexpr std::int64_t winograd_v_step(std::int64_t c_blocks, std::int64_t count) {
  return c_blocks * count * 16 + 16;
}
/// Floats of M: [elements][panel_blocks][count][16], likewise.
constexpr std::int64_t winograd_m_step(std::int64_t panel_blocks, std::int64_t count) {
  return panel_blocks * count * 16 + 16;
}

struct WinogradKernels {
  /// Writes the channel blocks [begin, end) of V.
  void (*transform)(const Winograd&, const TileBlock&, float* v, std::int64_t begin,
                    std::int64_t end);
  /// Computes the output channels of the panels [begin, end) from V. `chunks` has room for
  /// c_blocks chunks of a GEMM tile, 8 bytes each.
  void (*multiply)(const Winograd&, const TileBlock&, const float* v, float* m, void* chunks,
                   std::int64_t begin, std::int64_t end);
};

// Returns the kernels of the tile kWinogradTiles[index].
TORCHALGO_DECLARE_KERNEL(WinogradKernels winograd_kernels(int index))

}  // namespace torchalgo::kernels
