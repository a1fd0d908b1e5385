// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/strassen.h"

#include <algorithm>
#include <array>

#include "cpu_algo/kernels/gemm_accumulators.h"
#include "cpu_algo/kernels/instances.h"

namespace torchalgo::kernels {
namespace {

constexpr int kProducts = 7;
constexpr int kSums = 4;  // S1 to S4, and T1 to T4

// The left factor of a product.
struct Factor {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  const Chunk* chunks = nullptr;
  int chunk_count = 0;
  std::int64_t ahead = 0;  // Tile::a_ahead
};

// A quarter of C. `tile` holds its memory and the steps that follow the product. Only rows from
// `first_row` on and `blocks` blocks are stored: the rest does not exist or belongs to another
// tile.
struct Quarter {
  Tile tile;
  int first_row = 0;
  int blocks = 0;
};

// A unit of work: two tiles of pixels times two panels of weights.
struct Unit {
  std::array<Factor, kProducts> factors;
  std::array<const float*, kProducts> b;
  std::array<Quarter, 4> quarters;
  // Memory that the products prefetch. Each of the two ranges is prefetched by kProductsThatFetch
  // products, `prefetch_lines` cache lines per chunk.
  std::array<const float*, 2> prefetch = {};
  int prefetch_lines = 0;
};
constexpr int kProductsThatFetch = 3;

// Finishes a quarter of which only a part is stored. Products::finish does the same for a whole
// quarter.
[[gnu::noinline]] void finish_partly(const Quarter& quarter, const float* sums, int rows,
                                     int blocks) {
  const Tile& tile = quarter.tile;
  with_activation(tile.activation.kind, [&]<Activation::Kind kind>() {
    for (int row = quarter.first_row; row < rows; ++row) {
      for (int v = 0; v < quarter.blocks * kBlockVectors; ++v) {
        const std::int64_t at = row * tile.c_row_stride + v / kBlockVectors * tile.c_block_stride +
                                v % kBlockVectors * kLanes;
        Vec x = Vec::loadu(sums + (row * blocks * kBlockVectors + v) * kLanes);
        if (tile.accumulate) {
          x = x + Vec::loadu(tile.c + at);
        } else if (tile.bias != nullptr) {
          x = x + Vec::loadu(tile.bias + v * kLanes);
        }
        if (tile.residual != nullptr) x = x + Vec::loadu(tile.residual + at);
        if constexpr (is_clamp(kind)) x = activate<kind>(x, tile.activation);
        x.store(tile.c + at);
      }
    }
  });
}

// Says what happens to the sums of a product. kKeep: they are kept for a later product. kFinish:
// they complete a quarter of C. kShare: they are added to `u_` and, together with `v_`, complete a
// quarter.
enum class End { kKeep, kFinish, kShare };

// Computes the seven products of a unit. Sums stay in registers only during one product. If they
// stayed there across products, GCC would spill them to memory more often than this code stores
// them.
template <int rows, int blocks>
class Products {
 public:
  static void run(const Unit& unit) {
    run_instance<kStrassenUnits, tile_index(rows, blocks)>([&] { Products(unit).run_all(); });
  }

 private:
  using Sums = Accumulators<rows, blocks, false>;

  explicit Products(const Unit& unit) : unit_(unit) {}

  void run_all() {
    product<End::kKeep>(0, nullptr, u_);           // P1
    product<End::kFinish>(1, u_, nullptr, 0);      // P2: C11
    product<End::kKeep>(2, u_, u_);                // P6
    product<End::kKeep>(3, u_, v_);                // P7
    product<End::kFinish>(4, v_, nullptr, 2);      // -P4: C21
    product<End::kShare>(5, nullptr, nullptr, 3);  // P5: C22, and C12 without P3
    product<End::kFinish>(6, u_, nullptr, 1);      // P3: C12
  }

  static Tile kept() {  // the memory layout of `u_` and `v_`
    Tile tile;
    tile.c_row_stride = blocks * kBlock;
    tile.c_block_stride = kBlock;
    return tile;
  }
  static void store(Sums& sums, float* to) {
    sums.template for_each_at<float*>(to, kept(),
                                      [](const Vec& x, float* at, bool) { x.store(at); });
  }

  template <End end>
  [[gnu::noinline]] void product(int i, const float* begin, float* keep, int quarter = 0) {
    const Factor& factor = unit_.factors[i];
    Tile tile;
    tile.depth = kBlock;
    tile.a = factor.data;
    tile.a_row_stride = factor.row_stride;
    tile.chunks = factor.chunks;
    tile.chunk_count = factor.chunk_count;
    tile.a_ahead = factor.ahead;
    tile.b = unit_.b[i];
    if (i < 2 * kProductsThatFetch) {
      const std::int64_t lines = unit_.prefetch_lines;
      tile.prefetch = unit_.prefetch[i / kProductsThatFetch] +
                      lines * (i % kProductsThatFetch) * factor.chunk_count * 16;
      tile.prefetch_lines = static_cast<int>(lines);
    }
    Sums sums;
    if constexpr (end != End::kKeep) sums.fetch_ends(unit_.quarters[quarter].tile);
    if (begin == nullptr) {
      sums.load(Sums::kZeros, 0, kBlock);
    } else {
      sums.load(begin, blocks * kBlock, kBlock);
    }
    sums.template multiply<kLanes == kBlock>(tile);
    if constexpr (end == End::kKeep) {
      store(sums, keep);
    } else {
      if constexpr (end == End::kShare) {
        sums.template for_each_at<float*>(
            u_, kept(), [](const Vec& x, float* at, bool) { (x + Vec::loadu(at)).store(at); });
        sums.add(v_, blocks * kBlock, kBlock);
      }
      finish(sums, unit_.quarters[quarter]);
    }
  }

  static void finish(Sums& sums, const Quarter& quarter) {
    if (quarter.first_row != 0 || quarter.blocks != blocks) {
      alignas(64) float copy[rows * blocks * kBlock];
      store(sums, copy);
      finish_partly(quarter, copy, rows, blocks);
      return;
    }
    const Tile& tile = quarter.tile;
    if (tile.accumulate) {
      sums.add(tile.c, tile.c_row_stride, tile.c_block_stride);
    } else if (const float* const bias = tile.bias; bias != nullptr) {
      sums.add(bias, 0, kBlock);
    }
    if (tile.residual != nullptr) sums.add(tile.residual, tile.c_row_stride, tile.c_block_stride);
    const Clamp clamp = clamp_of(tile.activation);
    sums.template for_each_at<float*>(
        tile.c, tile,
        [low = Vec(clamp.low), high = Vec(clamp.high)](const Vec& x, float* at, bool) {
          apply_clamp(x, low, high).store(at);
        });
  }

  const Unit& unit_;
  // `u_` holds P1, then P1 + P6, then C12 without P3. `v_` holds P1 + P6 + P7.
  alignas(64) float u_[rows * blocks * kBlock];
  alignas(64) float v_[rows * blocks * kBlock];
};

using RunUnit = void (*)(const Unit&);

RunUnit unit_runner(int rows, int blocks) {
  const RunUnit* const units[] = {kRunners<Products, 1>.data(), kRunners<Products, 2>.data(),
                                  kRunners<Products, 3>.data()};
  return units[blocks - 1][rows - 1];
}

// The scratch memory of a block of K and pixels. It holds S1 to S4 of each unit, plane by plane of
// the first half, and T1 to T4 of a panel.
struct Sizes {
  int max_rows;
  std::int64_t plane;   // floats of a plane of one S
  std::int64_t half;    // planes, at most
  std::int64_t units;   // per image, at most
  std::int64_t sums;    // floats of all S
  std::int64_t panel;   // floats of one T
  std::int64_t tables;  // bytes of the four tables of chunks

  explicit Sizes(const ConvGemm& conv)
      : max_rows(TORCHALGO_ISA::max_tile_rows(conv.panel_blocks)),
        plane(max_rows * kBlock),
        half(strassen_half(conv.block_planes)),
        units((Strips(conv.q, 2 * max_rows).count + conv.blocks_per_image - 1) /
              conv.blocks_per_image),
        sums(conv.block_images * units * kSums * half * plane),
        panel(half * kBlock * conv.panel_blocks * kBlock),
        tables((4 * half * static_cast<std::int64_t>(sizeof(Chunk)) + 63) / 64 * 64) {}
};

// Runs one task.
class Task {
 public:
  Task(const ConvGemm& conv, std::int64_t task, char* scratch)
      : conv_(conv),
        sizes_(conv),
        blocks_((conv.columns + kBlock - 1) / kBlock),
        panels_(strassen_half(blocks_), conv.panel_blocks),
        units_(conv.q, 2 * sizes_.max_rows),
        k_blocks_(conv.planes, static_cast<int>(conv.block_planes)),
        narrow_(static_cast<int>(strassen_half(blocks_) / panels_.count)),
        chunks_(reinterpret_cast<Chunk*>(scratch)),
        sums_(reinterpret_cast<float*>(scratch + sizes_.tables)),
        panel_sums_(sums_ + sizes_.sums) {
    const std::int64_t blocks = conv_gemm_blocks(conv);
    const std::int64_t block = task % blocks, part = task / blocks;
    const std::int64_t of_image = block % conv.blocks_per_image;
    begin_image_ = block / conv.blocks_per_image * conv.block_images;
    end_image_ = std::min(conv.images, begin_image_ + conv.block_images);
    begin_unit_ = units_.count * of_image / conv.blocks_per_image;
    end_unit_ = units_.count * (of_image + 1) / conv.blocks_per_image;
    begin_panel_ = panels_.count * part / conv.panel_parts;
    end_panel_ = panels_.count * (part + 1) / conv.panel_parts;
    make_chunks();
  }

  void run() {
    if (begin_unit_ == end_unit_ || begin_panel_ == end_panel_) return;
    for (std::int64_t k_block = 0; k_block < k_blocks_.count; ++k_block)
      for (std::int64_t panel = begin_panel_; panel < end_panel_; ++panel)
        run_panel(k_block, panel);
  }

 private:
  // Makes the chunk tables, in the order [narrow panels, wide panels][source, S].
  void make_chunks() {
    Chunk* chunk = chunks_;
    for (const int blocks : {narrow_, narrow_ + 1}) {
      for (const std::int64_t plane_step : {conv_.src_plane, sizes_.plane}) {
        for (std::int64_t plane = 0; plane < sizes_.half; ++plane) {
          *chunk++ = {static_cast<std::int32_t>(plane * plane_step),
                      static_cast<std::int32_t>(plane * kBlock * blocks * kBlock)};
        }
      }
    }
  }

  [[nodiscard]] int rows_of(std::int64_t unit) const { return (units_.size(unit) + 1) / 2; }

  // Returns the first pixel of a tile. Both tiles of a unit have the same number of rows. If the
  // number of pixels is odd, they share one pixel.
  [[nodiscard]] std::int64_t first_pixel(std::int64_t unit, bool is_second) const {
    return is_second ? units_.begin(unit + 1) - rows_of(unit) : units_.begin(unit);
  }

  [[nodiscard]] const float* source(std::int64_t k_block, std::int64_t image, std::int64_t unit,
                                    bool is_second) const {
    return conv_.src + image * conv_.src_image + k_blocks_.begin(k_block) * conv_.src_plane +
           first_pixel(unit, is_second) * conv_.src_pixel;
  }

  [[nodiscard]] float* sums_of(std::int64_t image, std::int64_t unit) const {
    return sums_ + ((image - begin_image_) * sizes_.units + unit - begin_unit_) * kSums *
                       sizes_.half * sizes_.plane;
  }

  // Computes S1 to S4 of a unit and prefetches A21 of the next unit. The other quarters of the next
  // unit are prefetched while this unit is multiplied.
  void add_up(std::int64_t k_block, std::int64_t image, std::int64_t unit) {
    const int planes = k_blocks_.size(k_block);
    const std::int64_t half = strassen_half(planes);
    const std::int64_t second_k = half * conv_.src_plane;
    const float* const first = source(k_block, image, unit, false);
    const float* const second = source(k_block, image, unit, true);
    const std::int64_t ahead = units_.size(unit) * conv_.src_pixel;
    const std::int64_t step = sizes_.half * sizes_.plane;
    const int rows = rows_of(unit);
    for (std::int64_t plane = 0; plane < half; ++plane) {
      const bool is_missing = plane + half == planes;  // true if the second half has no such plane
      float* to = sums_of(image, unit) + plane * sizes_.plane;
      for (int row = 0; row < rows; ++row) {
        const std::int64_t from = plane * conv_.src_plane + row * conv_.src_pixel;
        __builtin_prefetch(second + from + ahead, 0, 2);
        for (int lane = 0; lane < kBlock; lane += kLanes, to += kLanes) {
          const Vec a11 = Vec::loadu(first + from + lane);
          const Vec a21 = Vec::loadu(second + from + lane);
          const Vec a12 = is_missing ? Vec(0.0F) : Vec::loadu(first + from + second_k + lane);
          const Vec a22 = is_missing ? Vec(0.0F) : Vec::loadu(second + from + second_k + lane);
          const Vec s1 = a21 + a22;
          const Vec s2 = s1 - a11;
          s1.store(to);
          s2.store(to + step);
          (a11 - a21).store(to + 2 * step);
          (a12 - s2).store(to + 3 * step);
        }
      }
    }
  }

  [[nodiscard]] const float* weights_of(std::int64_t k_block, std::int64_t panel,
                                        bool is_second) const {
    const std::int64_t depth = conv_.planes * kBlock;
    const std::int64_t column = (panels_.begin(panel) + (is_second ? panels_.rows : 0)) * kBlock;
    return conv_.weights + column * depth +
           k_blocks_.begin(k_block) * kBlock * panels_.size(panel) * kBlock;
  }

  // Returns the right factors of a panel's products, in the order of the products. It computes T1
  // to T4.
  std::array<const float*, kProducts> make_factors(std::int64_t k_block, std::int64_t panel) {
    const std::int64_t width = panels_.size(panel) * kBlock;
    const std::int64_t depth = k_blocks_.size(k_block) * kBlock;
    const std::int64_t half = strassen_half(k_blocks_.size(k_block)) * kBlock;
    const float* const b11 = weights_of(k_block, panel, false);
    const float* const b12 = weights_of(k_block, panel, true);
    const float* const b21 = b11 + half * width;
    const float* const b22 = b12 + half * width;
    float* const t1 = panel_sums_;
    float* const t2 = t1 + sizes_.panel;
    float* const t3 = t2 + sizes_.panel;
    float* const minus_t4 = t3 + sizes_.panel;
    const std::int64_t both = (depth - half) * width;  // floats for which K has a second half
    const auto add = [&](std::int64_t i, Vec x21, Vec x22) {
      const Vec x11 = Vec::loadu(b11 + i), x12 = Vec::loadu(b12 + i);
      const Vec y1 = x12 - x11;
      const Vec y2 = x22 - y1;
      y1.store(t1 + i);
      y2.store(t2 + i);
      (x22 - x12).store(t3 + i);
      (x21 - y2).store(minus_t4 + i);
    };
    for (std::int64_t i = 0; i < both; i += kLanes)
      add(i, Vec::loadu(b21 + i), Vec::loadu(b22 + i));
    for (std::int64_t i = both; i < half * width; i += kLanes) add(i, Vec(0.0F), Vec(0.0F));
    return {b11, b21, t2, t3, minus_t4, t1, b22};
  }

  // Sets the part of the next panel that this unit's products prefetch into L2.
  void set_prefetch(Unit& unit, std::int64_t k_block, std::int64_t panel, std::int64_t done) const {
    unit.prefetch_lines = 0;
    std::int64_t next = panel + 1, next_k = k_block;
    if (next == end_panel_) {
      next = begin_panel_;
      if (++next_k == k_blocks_.count) return;
    }
    const std::int64_t units = (end_image_ - begin_image_) * (end_unit_ - begin_unit_);
    const std::int64_t chunks = kProductsThatFetch * (k_blocks_.size(k_block) / 2);
    if (!conv_.prefetch || chunks == 0) return;
    const std::int64_t lines = k_blocks_.size(next_k) * kBlock * panels_.size(next);
    const std::int64_t per_chunk = (lines + units * chunks - 1) / (units * chunks);
    unit.prefetch_lines = static_cast<int>(per_chunk);
    for (const bool is_second : {false, true})
      unit.prefetch[is_second] =
          weights_of(next_k, next, is_second) + done * chunks * per_chunk * 16;
  }

  void run_panel(std::int64_t k_block, std::int64_t panel) {
    Unit unit;
    unit.b = make_factors(k_block, panel);
    start_quarters(unit, k_block, panel);
    std::int64_t done = 0;
    for (std::int64_t image = begin_image_; image < end_image_; ++image) {
      for (std::int64_t index = begin_unit_; index < end_unit_; ++index) {
        if (panel == begin_panel_) add_up(k_block, image, index);
        set_factors(unit, k_block, panel, image, index);
        set_quarters(unit, k_block, panel, image, index);
        set_prefetch(unit, k_block, panel, done++);
        unit_runner(rows_of(index), panels_.size(panel))(unit);
        if (is_last(k_block)) finish_blocks(unit, rows_of(index));
      }
    }
  }

  [[nodiscard]] bool is_last(std::int64_t k_block) const { return k_block + 1 == k_blocks_.count; }

  // Returns the first block of output channels of a panel's quarter.
  [[nodiscard]] std::int64_t block_of(std::int64_t panel, int quarter) const {
    return panels_.begin(panel) + (quarter % 2) * panels_.rows;
  }

  void start_quarters(Unit& unit, std::int64_t k_block, std::int64_t panel) const {
    for (int i = 0; i < 4; ++i) {
      Quarter& quarter = unit.quarters[i];
      Tile& tile = quarter.tile;
      const std::int64_t block = block_of(panel, i);
      quarter.blocks =
          static_cast<int>(std::min<std::int64_t>(panels_.size(panel), blocks_ - block));
      tile.columns = static_cast<int>(
          std::min<std::int64_t>(quarter.blocks * kBlock, conv_.columns - block * kBlock));
      tile.c_row_stride = conv_.dst_pixel;
      tile.c_block_stride = conv_.dst_block;
      tile.accumulate = k_block > 0;
      if (conv_.bias != nullptr) tile.bias = conv_.bias + block * kBlock;
      if (is_last(k_block)) tile.activation = conv_.activation;
    }
  }

  void set_quarters(Unit& unit, std::int64_t k_block, std::int64_t panel, std::int64_t image,
                    std::int64_t index) const {
    const int rows = rows_of(index);
    for (int i = 0; i < 4; ++i) {
      Quarter& quarter = unit.quarters[i];
      const bool is_second = i / 2 != 0;
      const std::int64_t dst = image * conv_.dst_image + block_of(panel, i) * conv_.dst_block +
                               first_pixel(index, is_second) * conv_.dst_pixel;
      quarter.tile.c = conv_.dst + dst;
      if (is_last(k_block) && conv_.residual != nullptr)
        quarter.tile.residual = conv_.residual + dst;
      quarter.first_row = is_second ? 2 * rows - units_.size(index) : 0;
    }
  }

  void set_factors(Unit& unit, std::int64_t k_block, std::int64_t panel, std::int64_t image,
                   std::int64_t index) const {
    const std::int64_t half = strassen_half(k_blocks_.size(k_block));
    const Chunk* const of_source = chunks_ + (panels_.size(panel) - narrow_) * 2 * sizes_.half;
    const Chunk* const of_sums = of_source + sizes_.half;
    // The caller's tensor is cold only in the first pass over it.
    const std::int64_t ahead = panel == begin_panel_ ? units_.size(index) * conv_.src_pixel : 0;
    const auto plain = [&](bool is_second, std::int64_t plane, std::int64_t count) {
      return Factor{source(k_block, image, index, is_second) + plane * conv_.src_plane,
                    conv_.src_pixel, of_source, static_cast<int>(count), ahead};
    };
    const auto sum = [&](int i, std::int64_t count) {
      return Factor{sums_of(image, index) + (i - 1) * sizes_.half * sizes_.plane, kBlock, of_sums,
                    static_cast<int>(count)};
    };
    // A12, A22, B21 and B22 may have one plane less than the other quarters. The missing plane
    // counts as zeros.
    const std::int64_t rest = k_blocks_.size(k_block) - half;
    unit.factors = {plain(false, 0, half), plain(false, half, rest), sum(2, half),
                    sum(3, half),          plain(true, half, rest),  sum(1, half),
                    sum(4, rest)};
  }

  // Applies activations that do not fit into the registers, and clears the lanes beyond the last
  // channel.
  void finish_blocks(const Unit& unit, int rows) const {
    for (const Quarter& quarter : unit.quarters) {
      if (quarter.blocks <= 0) continue;
      Tile tile = quarter.tile;
      tile.c += quarter.first_row * tile.c_row_stride;
      const int count = rows - quarter.first_row;
      if (!is_clamp(tile.activation)) activate_tile(tile, count, quarter.blocks);
      // Sums combine columns of both halves, so lanes without a column are zero only up to
      // rounding.
      if (tile.columns % kBlock != 0)
        clear_lanes(tile.c + (quarter.blocks - 1) * tile.c_block_stride, tile.c_row_stride, count,
                    tile.columns % kBlock);
    }
  }

  const ConvGemm& conv_;
  Sizes sizes_;
  std::int64_t blocks_;  // of 16 output channels
  Strips panels_;        // of the first half of blocks
  Strips units_;         // of an image's pixels
  Strips k_blocks_;      // of planes
  int narrow_;           // blocks of the narrower panels; the others have one more
  Chunk* chunks_;
  float* sums_;
  float* panel_sums_;
  std::int64_t begin_image_ = 0, end_image_ = 0;
  std::int64_t begin_unit_ = 0, end_unit_ = 0;
  std::int64_t begin_panel_ = 0, end_panel_ = 0;
};

}  // namespace

namespace TORCHALGO_ISA {

std::int64_t strassen_scratch_bytes(const ConvGemm& conv) {
  const Sizes sizes(conv);
  return sizes.tables +
         (sizes.sums + kSums * sizes.panel) * static_cast<std::int64_t>(sizeof(float));
}

void strassen(const ConvGemm& conv, std::int64_t begin, std::int64_t end, void* scratch) {
  for (std::int64_t task = begin; task < end; ++task)
    Task(conv, task, static_cast<char*>(scratch)).run();
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
