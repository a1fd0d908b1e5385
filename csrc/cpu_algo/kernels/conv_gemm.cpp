// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/conv_gemm.h"

#include <algorithm>
#include <cstring>

#include "cpu_algo/kernels/instances.h"
#include "cpu_algo/kernels/row_range.h"
#include "cpu_algo/kernels/strassen.h"

namespace torchalgo::kernels {
namespace {

bool runs_strassen(const ConvGemm& conv) { return has_instances(kStrassenUnits) && conv.strassen; }

// The following sizes depend on the geometry only. Sizes of tables and rows are upper bounds for
// any block.

std::int64_t padded_width(const ConvGemm& conv) { return conv.pad_w + conv.w + conv.after_w; }

// Returns the source rows that the tallest block reads.
std::int64_t copied_rows(const ConvGemm& conv) {
  return most_rows_read(conv, (conv.p + conv.blocks_per_image - 1) / conv.blocks_per_image);
}

constexpr std::int64_t kPlaneGap = 16;  // floats; a distance of a power of two would alias

// Returns true if the pixels of a filter row's taps are adjacent in memory. These taps are then one
// chunk.
bool is_row_contiguous(const ConvGemm& conv) {
  return conv.dilation_w == 1 && (has_wide_rows(conv) || conv.src_pixel == conv.plane_width);
}
std::int64_t chunks_per_row(const ConvGemm& conv) { return is_row_contiguous(conv) ? 1 : conv.s; }
std::int64_t chunk_depth(const ConvGemm& conv) {
  return conv.plane_width * (is_row_contiguous(conv) ? conv.s : 1);
}
std::int64_t max_chunks(const ConvGemm& conv) {
  return conv.block_planes * conv.r * chunks_per_row(conv);
}

// Returns the number of filter rows that lie above source row `row` for output row y.
std::int64_t taps_above(const ConvGemm& conv, std::int64_t y, std::int64_t row) {
  const std::int64_t distance = row - (y * conv.stride_h - conv.pad_h);
  if (distance <= 0) return 0;
  return std::min(conv.r, (distance + conv.dilation_h - 1) / conv.dilation_h);
}

// The chunks of one block of K for a range of filter rows.
struct Taps {
  std::int64_t begin_r = 0, end_r = 0;
  Chunk* chunks = nullptr;
  int per_plane = 0;
};

// Returns the most ranges of filter rows. Both ends of the range only decrease while y increases,
// and each takes at most r + 1 values.
std::int64_t max_tap_ranges(const ConvGemm& conv) { return 2 * conv.r + 1; }

std::int64_t table_bytes(const ConvGemm& conv) {
  const std::int64_t bytes =
      max_tap_ranges(conv) *
      static_cast<std::int64_t>(sizeof(Taps) + max_chunks(conv) * sizeof(Chunk));
  return (bytes + 63) / 64 * 64;
}

// The memory of matrix A: the caller's tensor, or the padded copy of its rows.
struct Source {
  const float* data =
      nullptr;  // image `begin_image`, row `begin_row`, column -pad_w of the padding
  std::int64_t begin_row = 0;
  std::int64_t image = 0, plane = 0, row = 0, pixel = 0;
};

// A block of output pixels: units [begin_unit, end_unit) of images [begin_image, end_image). A unit
// is a strip of pixels of one output row.
struct PixelBlock {
  std::int64_t begin_image = 0, end_image = 0;
  std::int64_t begin_unit = 0, end_unit = 0;
};

PixelBlock pixel_block(const ConvGemm& conv, const Strips& strips, std::int64_t block) {
  const std::int64_t per_image = conv.blocks_per_image;
  const std::int64_t part = block % per_image;
  PixelBlock result;
  result.begin_image = block / per_image * conv.block_images;
  result.end_image = std::min(conv.images, result.begin_image + conv.block_images);
  // Blocks are cut between output rows, or inside the one row of a flat 1x1 convolution.
  const bool is_flat = conv.p == 1 && !has_wide_rows(conv);
  const std::int64_t grain = is_flat ? 1 : strips.count;
  const std::int64_t grains = conv.p * strips.count / grain;
  result.begin_unit = grains * part / per_image * grain;
  result.end_unit = grains * (part + 1) / per_image * grain;
  return result;
}

// Returns the source rows that a block of a padded convolution reads.
Rows source_rows(const ConvGemm& conv, const Strips& strips, const PixelBlock& block) {
  return rows_read(conv,
                   {block.begin_unit / strips.count, (block.end_unit - 1) / strips.count + 1});
}

// The source rows that the next block copies. The tiles of this block prefetch them, because a
// network's image is cold. The hardware prefetcher is no help: a copy ends before it detects a
// stream.
class RowsAhead {
 public:
  RowsAhead() = default;
  RowsAhead(const ConvGemm& conv, std::int64_t image, const Rows& rows)
      : at_(conv.src + image * conv.src_image + rows.begin * conv.src_row),
        plane_stride_(conv.src_plane),
        planes_left_(rows.count() > 0 ? conv.planes : 0),
        lines_per_plane_((rows.count() * conv.src_row + 15) / 16) {}

  [[nodiscard]] bool is_empty() const { return planes_left_ == 0; }
  [[nodiscard]] std::int64_t lines() const { return planes_left_ * lines_per_plane_; }
  [[nodiscard]] const float* at() const { return at_ + line_ * 16; }
  // Moves on by `lines` cache lines. Prefetching past the end of a plane is harmless; the next
  // plane then starts at its first line.
  void skip(std::int64_t lines) {
    line_ += lines;
    if (line_ < lines_per_plane_) return;
    line_ = 0;
    at_ += plane_stride_;
    --planes_left_;
  }

 private:
  const float* at_ = nullptr;  // the first line of the current plane
  std::int64_t plane_stride_ = 0, planes_left_ = 0, lines_per_plane_ = 0, line_ = 0;
};

// The chunk tables, one per range of filter rows that overlaps the image. A table is made at its
// first use.
class TapTables {
 public:
  TapTables(const ConvGemm& conv, const Source& source, int width, char* memory)
      : conv_(conv),
        source_(source),
        width_(width),
        taps_(reinterpret_cast<Taps*>(memory)),
        chunks_(reinterpret_cast<Chunk*>(taps_ + max_tap_ranges(conv))) {}

  const Taps& of_row(std::int64_t y) {
    const std::int64_t begin = taps_above(conv_, y, 0);
    const std::int64_t end = taps_above(conv_, y, conv_.h);
    for (int i = 0; i < count_; ++i) {
      if (taps_[i].begin_r == begin && taps_[i].end_r == end) return taps_[i];
    }
    return make(begin, end);
  }

 private:
  const Taps& make(std::int64_t begin, std::int64_t end) {
    const std::int64_t steps = chunks_per_row(conv_);
    const std::int64_t depth = chunk_depth(conv_);
    Taps& taps = taps_[count_];
    taps = {begin, end, chunks_ + count_ * max_chunks(conv_),
            static_cast<int>((end - begin) * steps)};
    ++count_;
    Chunk* chunk = taps.chunks;
    for (std::int64_t plane = 0; plane < conv_.block_planes; ++plane) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t step = 0; step < steps; ++step) {
          const std::int64_t k = ((plane * conv_.r + r) * steps + step) * depth;
          chunk->a =
              static_cast<std::int32_t>(plane * source_.plane + r * conv_.dilation_h * source_.row +
                                        step * conv_.dilation_w * source_.pixel);
          chunk->b = static_cast<std::int32_t>(k * width_);
          ++chunk;
        }
      }
    }
    return taps;
  }

  const ConvGemm& conv_;
  const Source& source_;
  int width_;
  Taps* taps_;
  Chunk* chunks_;
  int count_ = 0;
};

// Runs one task.
class Task {
 public:
  Task(const ConvGemm& conv, std::int64_t task, char* scratch)
      : conv_(conv),
        blocks_((conv.columns + kTileBlock - 1) / kTileBlock),
        panels_(blocks_, conv.panel_blocks),
        strips_(conv.q, TORCHALGO_ISA::max_tile_rows(conv.panel_blocks)),
        k_blocks_(conv.planes, static_cast<int>(conv.block_planes)),
        rows_(reinterpret_cast<float*>(scratch + 2 * table_bytes(conv))),
        source_(source_strides(conv)),
        narrow_(static_cast<int>(blocks_ / panels_.count)),
        tables_{{conv, source_, narrow_ * kTileBlock, scratch},
                {conv, source_, (narrow_ + 1) * kTileBlock, scratch + table_bytes(conv)}} {
    const std::int64_t pixel_blocks = conv_gemm_blocks(conv);
    const std::int64_t block = task % pixel_blocks;
    block_ = pixel_block(conv, strips_, block);
    const bool copies_once = has_wide_rows(conv) && k_blocks_.count == 1 && conv.groups == 1;
    if (copies_once && !conv.prefetch) rows_ahead_ = rows_after(block, pixel_blocks);
    const std::int64_t part = task / pixel_blocks;
    const std::int64_t panels = conv.groups * panels_.count;
    begin_panel_ = panels * part / conv.panel_parts;
    end_panel_ = panels * (part + 1) / conv.panel_parts;
  }

  void run() {
    if (block_.begin_unit == block_.end_unit) return;
    for (std::int64_t first = begin_panel_; first < end_panel_;) {
      const std::int64_t group = first / panels_.count;
      const std::int64_t last = std::min(end_panel_, (group + 1) * panels_.count);
      for (std::int64_t k_block = 0; k_block < k_blocks_.count; ++k_block) {
        run_k_block(group, first - group * panels_.count, last - group * panels_.count, k_block);
      }
      first = last;
    }
  }

 private:
  [[nodiscard]] RowsAhead rows_after(std::int64_t block, std::int64_t blocks) const {
    if (block + 1 < blocks) {
      const PixelBlock next = pixel_block(conv_, strips_, block + 1);
      return {conv_, next.begin_image, source_rows(conv_, strips_, next)};
    }
    const std::int64_t end = source_rows(conv_, strips_, block_).end;
    return {conv_, block_.end_image - 1, {end, std::min(conv_.h, end + conv_.rows_below)}};
  }

  void run_k_block(std::int64_t group, std::int64_t first, std::int64_t last,
                   std::int64_t k_block) {
    find_source(group, k_block);
    for (std::int64_t panel = first; panel < last; ++panel) {
      run_panel(group, panel, k_block, panel + 1 < last ? panel + 1 : first, panel == first);
    }
  }

  [[nodiscard]] std::int64_t k_depth() const { return conv_.r * conv_.s * conv_.plane_width; }

  [[nodiscard]] const float* weights_of(std::int64_t group, std::int64_t panel,
                                        std::int64_t k_block) const {
    const std::int64_t column = (group * blocks_ + panels_.begin(panel)) * kTileBlock;
    const std::int64_t k = k_blocks_.begin(k_block) * k_depth();
    return conv_.weights + column * conv_.planes * k_depth() + k * panels_.size(panel) * kTileBlock;
  }

  void set_prefetch(Tile& tile, std::int64_t group, std::int64_t next, std::int64_t panel,
                    std::int64_t k_block, std::int64_t tiles) const {
    const bool is_next_k = next <= panel;
    if (!conv_.prefetch || (is_next_k && k_block + 1 == k_blocks_.count)) return;
    const std::int64_t next_k = is_next_k ? k_block + 1 : k_block;
    const std::int64_t lines =
        k_blocks_.size(next_k) * k_depth() * panels_.size(next) * kTileBlock / 16;
    const std::int64_t per_tile = (lines + tiles - 1) / tiles;
    const std::int64_t chunks = k_blocks_.size(k_block) * conv_.r * chunks_per_row(conv_);
    tile.prefetch = weights_of(group, next, next_k);
    tile.prefetch_lines = static_cast<int>((per_tile + chunks - 1) / chunks);
  }

  void run_panel(std::int64_t group, std::int64_t panel, std::int64_t k_block, std::int64_t next,
                 bool is_first) {
    const int blocks = panels_.size(panel);
    TapTables& tables = tables_[blocks - narrow_];
    const int planes = k_blocks_.size(k_block);
    const std::int64_t column = panels_.begin(panel) * kTileBlock;
    const std::int64_t units = block_.end_unit - block_.begin_unit;
    Tile tile;
    tile.is_far = true;
    tile.depth = static_cast<int>(chunk_depth(conv_));
    tile.a_row_stride = conv_.stride_w * source_.pixel;
    tile.b = weights_of(group, panel, k_block);
    tile.c_row_stride = conv_.dst_pixel;
    tile.c_block_stride = conv_.dst_block;
    tile.accumulate = k_block > 0;
    if (conv_.bias != nullptr) tile.bias = conv_.bias + group * blocks_ * kTileBlock + column;
    tile.columns =
        static_cast<int>(std::min<std::int64_t>(blocks * kTileBlock, conv_.columns - column));
    tile.pad_lanes = conv_.pad_lanes;
    const bool is_last = k_block + 1 == k_blocks_.count;
    if (is_last) tile.activation = conv_.activation;
    const std::int64_t tiles = units * (block_.end_image - block_.begin_image);
    set_prefetch(tile, group, next, panel, k_block, tiles);
    const std::int64_t most_chunks = planes * conv_.r * chunks_per_row(conv_);
    const auto lines_ahead =
        static_cast<int>((rows_ahead_.lines() + tiles * most_chunks - 1) / (tiles * most_chunks));
    const std::int64_t panel_dst = group * conv_.dst_group + panels_.begin(panel) * conv_.dst_block;
    for (std::int64_t image = block_.begin_image; image < block_.end_image; ++image) {
      for (std::int64_t unit = block_.begin_unit; unit < block_.end_unit;) {
        const std::int64_t y = unit / strips_.count;
        const std::int64_t row_end = std::min(block_.end_unit, (y + 1) * strips_.count);
        const Taps& taps = tables.of_row(y);
        tile.chunks = taps.chunks;
        tile.chunk_count = taps.per_plane * planes;
        const float* const a = source_.data + (image - block_.begin_image) * source_.image +
                               (y * conv_.stride_h - conv_.pad_h - source_.begin_row) * source_.row;
        const std::int64_t row_dst = panel_dst + image * conv_.dst_image + y * conv_.dst_row;
        // A tile of few products takes as long as a few divisions, so there is one division per
        // strip.
        std::int64_t x = strips_.begin(unit - y * strips_.count);
        for (; unit < row_end; ++unit) {
          const std::int64_t end = strips_.begin(unit - y * strips_.count + 1);
          const int rows = static_cast<int>(end - x);
          const std::int64_t dst = row_dst + x * conv_.dst_pixel;
          tile.a = a + x * tile.a_row_stride;
          tile.c = conv_.dst + dst;
          // The caller's tensor is cold in the first pass over it; a padded copy is not.
          if (is_first && !has_wide_rows(conv_)) tile.a_ahead = rows * tile.a_row_stride;
          if (is_last && conv_.residual != nullptr) tile.residual = conv_.residual + dst;
          const bool asks_for_rows = !rows_ahead_.is_empty();
          if (asks_for_rows) {
            tile.prefetch = rows_ahead_.at();
            tile.prefetch_lines = lines_ahead;
            rows_ahead_.skip(static_cast<std::int64_t>(lines_ahead) * tile.chunk_count);
          }
          TORCHALGO_ISA::gemm_tile(rows, blocks)(tile);
          if (asks_for_rows) {
            tile.prefetch = nullptr;
            tile.prefetch_lines = 0;
          } else if (tile.prefetch != nullptr) {
            tile.prefetch += static_cast<std::int64_t>(tile.prefetch_lines) * tile.chunk_count * 16;
          }
          x = end;
        }
      }
    }
  }

  static Source source_strides(const ConvGemm& conv) {
    if (!has_wide_rows(conv)) {
      return {nullptr, 0, conv.src_image, conv.src_plane, conv.src_row, conv.src_pixel};
    }
    const std::int64_t row = padded_width(conv) * conv.plane_width;
    const std::int64_t plane = copied_rows(conv) * row + kPlaneGap;
    return {nullptr, 0, conv.block_planes * plane, plane, row, conv.plane_width};
  }

  void find_source(std::int64_t group, std::int64_t k_block) {
    const float* src = conv_.src + block_.begin_image * conv_.src_image + group * conv_.src_group +
                       k_blocks_.begin(k_block) * conv_.src_plane;
    if (has_wide_rows(conv_)) {
      copy_rows(src, k_blocks_.size(k_block));
    } else {
      source_.data = src;
    }
  }

  // Copies the source rows that this block reads, with zeros on the left and right.
  void copy_rows(const float* src, int planes) {
    const auto [begin, end] = source_rows(conv_, strips_, block_);
    source_.data = rows_;
    source_.begin_row = begin;
    for (std::int64_t image = 0; image < block_.end_image - block_.begin_image; ++image) {
      for (std::int64_t plane = 0; plane < planes; ++plane) {
        const float* from = src + image * conv_.src_image + plane * conv_.src_plane;
        float* to = rows_ + image * source_.image + plane * source_.plane;
        for (std::int64_t row = begin; row < end; ++row) {
          copy_row(from + row * conv_.src_row, to + (row - begin) * source_.row);
        }
      }
    }
  }

  void copy_row(const float* from, float* to) const {
    const std::int64_t width = conv_.plane_width;
    to = std::fill_n(to, conv_.pad_w * width, 0.0F);
    if (conv_.src_pixel == width) {
      std::memcpy(to, from, static_cast<std::size_t>(conv_.w * width) * sizeof(float));
    } else {
      for (std::int64_t x = 0; x < conv_.w; ++x) {
        std::copy(from + x * conv_.src_pixel, from + x * conv_.src_pixel + width, to + x * width);
      }
    }
    std::fill_n(to + conv_.w * width, conv_.after_w * width, 0.0F);
  }

  const ConvGemm& conv_;
  std::int64_t blocks_;  // of 16 output channels, in a group
  Strips panels_;        // of blocks, in a group
  Strips strips_;        // of the pixels of an output row
  Strips k_blocks_;      // of planes
  PixelBlock block_;
  RowsAhead rows_ahead_;
  std::int64_t begin_panel_ = 0, end_panel_ = 0;
  float* rows_;
  Source source_;
  int narrow_;           // blocks of the narrower panels; the others have one more
  TapTables tables_[2];  // for narrow and for wide panels
};

}  // namespace

namespace TORCHALGO_ISA {

std::int64_t conv_gemm_scratch_bytes(const ConvGemm& conv) {
  if (runs_strassen(conv)) return TORCHALGO_ISA::strassen_scratch_bytes(conv);
  const std::int64_t plane = copied_rows(conv) * padded_width(conv) * conv.plane_width + kPlaneGap;
  const std::int64_t floats =
      has_wide_rows(conv) ? conv.block_images * conv.block_planes * plane : 0;
  return 2 * table_bytes(conv) + (floats * 4 + 63) / 64 * 64;
}

void conv_gemm(const ConvGemm& conv, std::int64_t begin, std::int64_t end, void* scratch) {
  if (runs_strassen(conv)) return TORCHALGO_ISA::strassen(conv, begin, end, scratch);
  for (std::int64_t task = begin; task < end; ++task) {
    Task(conv, task, static_cast<char*>(scratch)).run();
  }
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
