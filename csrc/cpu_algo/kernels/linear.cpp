// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/linear.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/gemm_tile.h"
#include "cpu_algo/kernels/instances.h"

namespace torchalgo::kernels {
namespace {

// The most rows of weights that are multiplied at once. Each pair of a row and an input has an
// accumulator, and each input has a vector. With one input, eight rows hide the latency of a
// multiply-add. The rows of a panel are divided equally.
constexpr int kMaxRows = 8;
#if defined(__AVX512F__)
constexpr std::array kRowsOf = {8, 8, 8, 6};  // of 1, 2, ... inputs: 32 registers
constexpr std::array kPanelRowsOf = {8, 8, 8, 4};
#else
constexpr std::array kRowsOf = {8, 6, 4};  // 16 registers
constexpr std::array kPanelRowsOf = {8, 4, 4};
#endif
constexpr int kMaxInputs = static_cast<int>(kRowsOf.size());
static_assert(kMaxInputs == kPanelRowsOf.size() && kMaxRows == kLinearPanel);

// The distance of the prefetch in a row, in floats. It goes to L2. Rows whose length is a power of
// two share sets of the L1 cache, which holds little more than 8 rows and the input of one column.
constexpr std::int64_t kAhead = 512;

// The distance of the prefetch in a panel, which is one stream: 3 KB. From memory and from L3, the
// hardware prefetcher alone is 5 to 20 % slower. A distance of 8 KB is as slow.
constexpr std::int64_t kPanelAhead = 768;

// The floats that hold one block of a panel: 16 columns of all rows, whose elements are float, Bf16
// or F16.
template <class Element>
constexpr std::int64_t kBlockFloats =
    kLinearPanel* kBlock* std::int64_t{sizeof(Element)} / std::int64_t{sizeof(float)};

// One tile: rows x inputs dot products.
struct Dots {
  const float* src;      // the first input; the next one lies c further
  const float* weights;  // the first row; likewise
  const float* next;     // the first of the rows that come next
  std::int64_t c;
  // The inputs may need several tiles. The first tile reads the weights from memory, the others
  // read them from a cache. Each tile prefetches a part of the next rows, so that memory is never
  // idle.
  std::int64_t tile, tiles;
  float* sums;  // [inputs, kBlock]
};

template <int rows, int inputs>
struct Accumulators {
  Vec acc[rows][inputs];

  // Adds the products of one vector of each row and each input. Inputs are `c` floats apart.
  template <class LoadInput, class LoadRow>
  void step(const LoadInput& load_input, const LoadRow& load_row, const float* src,
            std::int64_t c) {
    Vec x[inputs];
#pragma GCC unroll 8
    for (int input = 0; input < inputs; ++input) x[input] = load_input(src + input * c);
#pragma GCC unroll 8
    for (int row = 0; row < rows; ++row) {
      const Vec w = load_row(row);
#pragma GCC unroll 8
      for (int input = 0; input < inputs; ++input)
        acc[row][input] = fmadd(w, x[input], acc[row][input]);
    }
  }

  // Adds columns [begin, end), which are whole blocks of 16: one cache line of each row. With each
  // block it prefetches the line at `prefetch` of each row, and moves `prefetch` by
  // `prefetch_step`.
  void add(const Dots& dots, std::int64_t begin, std::int64_t end, const float* prefetch,
           std::int64_t prefetch_step) {
    for (std::int64_t i = begin; i < end; i += kBlock, prefetch += prefetch_step) {
#pragma GCC unroll 8
      for (int row = 0; row < rows; ++row) __builtin_prefetch(prefetch + row * dots.c, 0, 2);
#pragma GCC unroll 2
      for (int v = 0; v < kBlockVectors; ++v) {
        const std::int64_t at = i + v * kLanes;
        const auto load_row = [&](int row) { return Vec::loadu(dots.weights + at + row * dots.c); };
        step(load_whole, load_row, dots.src + at, dots.c);
      }
    }
  }

  void add_all(const Dots& dots) {
    const std::int64_t whole = dots.c / kBlock * kBlock;
    if (dots.tiles == 1) {
      const std::int64_t near_end = std::max<std::int64_t>(0, whole - kAhead);
      add(dots, 0, near_end, dots.weights + kAhead, kBlock);
      add(dots, near_end, whole, dots.next, kBlock);
    } else {
      add(dots, 0, whole, dots.next + dots.c * dots.tile / dots.tiles,
          (kBlock + dots.tiles - 1) / dots.tiles);
    }
    for (std::int64_t i = whole; i < dots.c; i += kLanes) {
      const auto load = load_first(std::min<std::int64_t>(kLanes, dots.c - i));
      const auto load_row = [&](int row) { return load(dots.weights + i + row * dots.c); };
      step(load, load_row, dots.src + i, dots.c);
    }
  }

  // Adds all columns of one panel. A panel is read from its beginning to its end, and the next
  // panel follows it in memory.
  template <class Element>
  void add_panel(const Dots& dots) {
    constexpr std::int64_t kLines = kBlockFloats<Element> / kBlock;
    const std::int64_t whole = dots.c / kBlock * kBlock;
    const float* weights = dots.weights;
    const float* prefetch = weights + kPanelAhead;
    std::int64_t lines = kLines;  // per block
    if (dots.tiles > 1) {
      prefetch = dots.next + whole / kBlock * kLines * dots.tile / dots.tiles * kBlock;
      lines = (kLines + dots.tiles - 1) / dots.tiles;
    }
    for (std::int64_t i = 0; i < whole; i += kBlock, weights += kBlockFloats<Element>) {
      for (std::int64_t line = 0; line < lines; ++line, prefetch += kBlock)
        __builtin_prefetch(prefetch, 0, 2);
#pragma GCC unroll 4
      for (int v = 0; v < kBlockVectors; ++v) {
        const std::int64_t at = v * kLanes;
        const auto load_row = [&](int row) { return load_panel<Element>(weights, row, at); };
        step(load_whole, load_row, dots.src + i + at, dots.c);
      }
    }
    for (std::int64_t i = whole; i < dots.c; i += kLanes) {
      const auto load = load_first(std::min<std::int64_t>(kLanes, dots.c - i));
      const auto load_row = [&](int row) { return load_panel<Element>(weights, row, i - whole); };
      step(load, load_row, dots.src + i, dots.c);
    }
  }

 private:
  static Vec load_whole(const float* at) { return Vec::loadu(at); }
  template <class Element>
  static Vec load_panel(const float* block, std::int64_t row, std::int64_t column) {
    return Vec::loadu(reinterpret_cast<const Element*>(block) + row * kBlock + column);
  }
  static auto load_first(std::int64_t count) {
    return [count = static_cast<int>(count)](const float* at) { return Vec::loadu(at, count); };
  }
};

using RunDots = void (*)(const Dots&);

template <int rows, int inputs, class Add>
void add_up(const Dots& dots, const Add& add) {
  Accumulators<rows, inputs> sums;
#pragma GCC unroll 8
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int input = 0; input < inputs; ++input) sums.acc[row][input] = Vec(0.0F);
  }
  add(sums);
  for (int row = 0; row < rows; ++row) {
    for (int input = 0; input < inputs; ++input)
      dots.sums[input * kBlock + row] = sum_of(sums.acc[row][input]);
  }
}

template <int rows, int inputs>
void run_dots(const Dots& dots) {
  run_instance<kRowDots, inputs - 1>(
      [&] { add_up<rows, inputs>(dots, [&](auto& sums) { sums.add_all(dots); }); });
}

template <class Element>
constexpr Family kPanelDotsOf = std::is_same_v<Element, float>  ? kPanelDots
                                : std::is_same_v<Element, Bf16> ? kBf16PanelDots
                                                                : kF16PanelDots;

template <int inputs, class Element>
void run_panel_dots(const Dots& dots) {
  run_instance<kPanelDotsOf<Element>, inputs - 1>([&] {
    add_up<kPanelRowsOf[inputs - 1], inputs>(
        dots, [&](auto& sums) { sums.template add_panel<Element>(dots); });
  });
}

template <int rows, int inputs>
constexpr RunDots dots_or_null() {
  if constexpr (rows <= kRowsOf[inputs - 1]) {
    return &run_dots<rows, inputs>;
  } else {
    return nullptr;
  }
}

template <int inputs, int... index>
constexpr std::array<RunDots, kMaxRows> dots_of(std::integer_sequence<int, index...>) {
  return {dots_or_null<index + 1, inputs>()...};
}

template <int... index>
constexpr std::array<std::array<RunDots, kMaxRows>, kMaxInputs> all_dots(
    std::integer_sequence<int, index...>) {
  return {dots_of<index + 1>(std::make_integer_sequence<int, kMaxRows>())...};
}

// kDots[inputs - 1][rows - 1]
constexpr auto kDots = all_dots(std::make_integer_sequence<int, kMaxInputs>());

// Returns a table whose entry [inputs - 1] is for panels of one type.
template <class Element, int... index>
constexpr std::array<RunDots, kMaxInputs> panel_dots(std::integer_sequence<int, index...>) {
  return {&run_panel_dots<index + 1, Element>...};
}

// Applies bias and activation to `rows` sums and stores them. The position of a sum in its vector
// does not change its bits.
void store(const Linear& linear, std::int64_t input, std::int64_t row, int rows, float* sums) {
  if (linear.bias != nullptr) {
    for (int i = 0; i < rows; ++i) sums[i] += linear.bias[row + i];
  }
  activate(sums, sums, kBlock, linear.activation);
  std::copy(sums, sums + rows, linear.dst + input * linear.k + row);
}

template <class Element>
void run_panels(const Linear& linear, std::int64_t begin, std::int64_t end) {
  constexpr auto kPanelDots = panel_dots<Element>(std::make_integer_sequence<int, kMaxInputs>());
  const std::int64_t c = linear.c;
  const std::int64_t panel_floats = (c + kBlock - 1) / kBlock * kBlockFloats<Element>;
  const std::int64_t panels = (linear.k + kLinearPanel - 1) / kLinearPanel;
  const float* const factors = linear.weights + panels * panel_floats;  // of f16
  const Strips inputs(linear.n, kMaxInputs);
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const float* const weights = linear.weights + panel * panel_floats;
    const std::int64_t row = panel * kLinearPanel;
    const auto row_count = static_cast<int>(std::min(kLinearPanel, linear.k - row));
    for (std::int64_t j = 0; j < inputs.count; ++j) {
      const std::int64_t input = inputs.begin(j);
      const int input_count = inputs.size(j);
      const int part_rows = kPanelRowsOf[input_count - 1], parts = kMaxRows / part_rows;
      float sums[kMaxInputs][kBlock] = {};
      for (int part = 0; part < parts; ++part) {
        kPanelDots[input_count - 1]({linear.src + input * c,
                                     weights + part * kBlockFloats<Element> / parts,
                                     weights + panel_floats, c, j * parts + part,
                                     inputs.count * parts, sums[0] + part * part_rows});
      }
      for (int x = 0; x < input_count; ++x) {
        if constexpr (std::is_same_v<Element, F16>) {
          for (int i = 0; i < row_count; ++i) sums[x][i] *= factors[row + i];
        }
        store(linear, input + x, row, row_count, sums[x]);
      }
    }
  }
}

}  // namespace

namespace TORCHALGO_ISA {

void run_linear(const Linear& linear, std::int64_t begin, std::int64_t end) {
  const std::int64_t c = linear.c;
  const Strips inputs(linear.n, kMaxInputs);
  const std::int64_t most_inputs = (linear.n + inputs.count - 1) / inputs.count;
  const Strips rows(end - begin, kRowsOf[most_inputs - 1]);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = begin + rows.begin(i);
    const int row_count = rows.size(i);
    const float* const weights = linear.weights + row * c;
    const float* const next = i + 1 < rows.count ? weights + row_count * c : weights;
    for (std::int64_t j = 0; j < inputs.count; ++j) {
      const std::int64_t input = inputs.begin(j);
      const int input_count = inputs.size(j);
      float sums[kMaxInputs][kBlock] = {};
      kDots[input_count - 1][row_count - 1](
          {linear.src + input * c, weights, next, c, j, inputs.count, sums[0]});
      for (int x = 0; x < input_count; ++x) store(linear, input + x, row, row_count, sums[x]);
    }
  }
}

void run_linear_panels(const Linear& linear, std::int64_t begin, std::int64_t end) {
  run_panels<float>(linear, begin, end);
}

void run_linear_panels_bf16(const Linear& linear, std::int64_t begin, std::int64_t end) {
  run_panels<Bf16>(linear, begin, end);
}

void run_linear_panels_f16(const Linear& linear, std::int64_t begin, std::int64_t end) {
  run_panels<F16>(linear, begin, end);
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
