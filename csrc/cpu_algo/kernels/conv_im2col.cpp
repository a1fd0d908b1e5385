// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/conv_im2col.h"

#include <algorithm>
#include <cstring>

#include "cpu_algo/kernels/gemm_tile.h"

namespace torchalgo::kernels {
namespace {

#if defined(__AVX512F__)
constexpr int kPanelBlocks = 2;
#else
constexpr int kPanelBlocks = 1;
#endif
constexpr std::int64_t kPanel = kPanelBlocks * kTileBlock;  // pixels of a panel

std::int64_t panel_count(std::int64_t pixels) { return (pixels + kPanel - 1) / kPanel; }

// Returns the panels of the largest block of pixels.
std::int64_t block_panels(const ConvIm2col& conv) {
  return (panel_count(conv.p * conv.q) + conv.blocks_per_image - 1) / conv.blocks_per_image;
}

// Writes one row of the im2col matrix, pixel by pixel, into panels [panel][depth][kPanel].
class PanelRow {
 public:
  PanelRow(float* row, std::int64_t panel_stride) : at_(row), panel_stride_(panel_stride) {}

  void put_zeros(std::int64_t count) {
    for_each_run(count,
                 [&](float* to, std::int64_t, std::int64_t run) { std::fill(to, to + run, 0.0F); });
  }

  void put(const float* from, std::int64_t stride, std::int64_t count) {
    for_each_run(count, [&](float* to, std::int64_t done, std::int64_t run) {
      const float* start = from + done * stride;
      if (stride == 1) {
        std::memcpy(to, start, static_cast<std::size_t>(run) * sizeof(float));
      } else {
        for (std::int64_t i = 0; i < run; ++i) to[i] = start[i * stride];
      }
    });
  }

  // Fills the rest of the last panel, so that no lane is undefined.
  void finish() {
    if (lane_ > 0) put_zeros(kPanel - lane_);
  }

 private:
  template <class Function>
  void for_each_run(std::int64_t count, const Function& function) {
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t run = std::min(count - done, kPanel - lane_);
      function(at_ + lane_, done, run);
      done += run;
      lane_ += run;
      if (lane_ == kPanel) {
        lane_ = 0;
        at_ += panel_stride_;
      }
    }
  }

  float* at_;
  std::int64_t panel_stride_;
  std::int64_t lane_ = 0;
};

class Task {
 public:
  Task(const ConvIm2col& conv, std::int64_t task, float* panels)
      : conv_(conv),
        depth_(conv.c * conv.r * conv.s),
        k_blocks_(depth_, static_cast<int>(conv.block_depth)),
        panels_(panels) {
    const std::int64_t blocks = conv.images * conv.blocks_per_image;
    const std::int64_t block = task % blocks;
    const std::int64_t part = task / blocks;
    const std::int64_t pixels = conv.p * conv.q;
    image_ = block / conv.blocks_per_image;
    begin_ = cut(pixels, block % conv.blocks_per_image);
    end_ = cut(pixels, block % conv.blocks_per_image + 1);
    begin_channel_ = conv.k * part / conv.channel_parts;
    end_channel_ = conv.k * (part + 1) / conv.channel_parts;
  }

  void run() {
    if (begin_ == end_ || begin_channel_ == end_channel_) return;
    for (std::int64_t group = 0; group < conv_.groups; ++group) {
      for (std::int64_t k_block = 0; k_block < k_blocks_.count; ++k_block) {
        gather(group, k_block);
        multiply(group, k_block);
      }
    }
  }

 private:
  // Returns the first pixel of `block`. Blocks begin and end at panels.
  [[nodiscard]] std::int64_t cut(std::int64_t pixels, std::int64_t block) const {
    return std::min(pixels, panel_count(pixels) * block / conv_.blocks_per_image * kPanel);
  }

  void gather(std::int64_t group, std::int64_t k_block) {
    const int depth = k_blocks_.size(k_block);
    for (int k = 0; k < depth; ++k) {
      const std::int64_t tap = k_blocks_.begin(k_block) + k;
      const std::int64_t channel = tap / (conv_.r * conv_.s);
      const float* src =
          conv_.src + ((image_ * conv_.groups + group) * conv_.c + channel) * conv_.h * conv_.w;
      PanelRow row(panels_ + k * kPanel, depth * kPanel);
      gather_tap(src, tap / conv_.s % conv_.r, tap % conv_.s, row);
      row.finish();
    }
  }

  void gather_tap(const float* src, std::int64_t r, std::int64_t s, PanelRow& row) const {
    const std::int64_t offset = s * conv_.dilation_w - conv_.pad_w;
    // For output columns [inside, outside) this tap lies inside the image.
    const std::int64_t stride = conv_.stride_w;
    const std::int64_t inside = offset < 0 ? (-offset + stride - 1) / stride : 0;
    const std::int64_t outside = conv_.w > offset ? (conv_.w - offset + stride - 1) / stride : 0;
    for (std::int64_t pixel = begin_; pixel < end_;) {
      const std::int64_t y = pixel / conv_.q;
      const std::int64_t x = pixel % conv_.q;
      const std::int64_t end_x = std::min(conv_.q, x + end_ - pixel);
      const std::int64_t src_y = y * conv_.stride_h + r * conv_.dilation_h - conv_.pad_h;
      const bool is_row_inside = src_y >= 0 && src_y < conv_.h;
      const std::int64_t first = is_row_inside ? std::clamp(inside, x, end_x) : end_x;
      const std::int64_t last = std::clamp(outside, first, end_x);
      row.put_zeros(first - x);
      if (last > first)
        row.put(src + src_y * conv_.w + first * stride + offset, stride, last - first);
      row.put_zeros(end_x - last);
      pixel += end_x - x;
    }
  }

  void multiply(std::int64_t group, std::int64_t k_block) const {
    const bool is_last = k_block + 1 == k_blocks_.count;
    const std::int64_t pixels = conv_.p * conv_.q;
    const Chunk whole;
    Tile tile;
    tile.a_row_stride = conv_.weights_row;
    tile.chunks = &whole;
    tile.chunk_count = 1;
    tile.depth = k_blocks_.size(k_block);
    tile.c_row_stride = pixels;
    tile.c_block_stride = kTileBlock;
    tile.accumulate = k_block > 0;
    if (is_last) tile.activation = conv_.activation;
    const Strips strips(end_channel_ - begin_channel_, TORCHALGO_ISA::max_tile_rows(kPanelBlocks));
    for (std::int64_t strip = 0; strip < strips.count; ++strip) {
      const std::int64_t channel = group * conv_.k + begin_channel_ + strips.begin(strip);
      tile.a = conv_.weights + channel * conv_.weights_row + k_blocks_.begin(k_block);
      if (conv_.bias != nullptr) tile.row_bias = conv_.bias + channel;
      const auto run = TORCHALGO_ISA::gemm_tile(strips.size(strip), kPanelBlocks);
      for (std::int64_t pixel = begin_; pixel < end_; pixel += kPanel) {
        const std::int64_t dst = (image_ * conv_.groups * conv_.k + channel) * pixels + pixel;
        tile.b = panels_ + (pixel - begin_) * tile.depth;
        tile.c = conv_.dst + dst;
        if (is_last && conv_.residual != nullptr) tile.residual = conv_.residual + dst;
        tile.columns = static_cast<int>(std::min(kPanel, end_ - pixel));
        run(tile);
      }
    }
  }

  const ConvIm2col& conv_;
  std::int64_t depth_;
  Strips k_blocks_;
  float* panels_;
  std::int64_t image_ = 0;
  std::int64_t begin_ = 0, end_ = 0;  // pixels
  std::int64_t begin_channel_ = 0, end_channel_ = 0;
};

}  // namespace

namespace TORCHALGO_ISA {

std::int64_t conv_im2col_scratch_bytes(const ConvIm2col& conv) {
  return block_panels(conv) * kPanel * conv.block_depth * 4;
}

void conv_im2col(const ConvIm2col& conv, std::int64_t begin, std::int64_t end, void* scratch) {
  for (std::int64_t task = begin; task < end; ++task) {
    Task(conv, task, static_cast<float*>(scratch)).run();
  }
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
