// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/linear.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/gemm_tile.h"

namespace torchalgo::kernels {
namespace {

// Inputs and rows of weights that are multiplied at once: an accumulator for each pair, beside a
// vector of each input. Eight rows hide the latency of a multiply-add where there is one input.
constexpr int kMaxRows = 8;
#if defined(CPU_CAPABILITY_AVX512)
constexpr std::array kRowsOf = {8, 8, 8, 6, 4, 4};  // of 1, 2, ... inputs: 32 registers
#else
constexpr std::array kRowsOf = {8, 6, 4};  // 16 registers
#endif
constexpr int kMaxInputs = static_cast<int>(kRowsOf.size());

// How far ahead of its use a cache line is asked for, in each row: the rows together then have
// twice as many bytes under way as memory of 20 GB/s and 100 ns delivers meanwhile.
constexpr std::int64_t kAhead = 128;

// One tile: rows x inputs dot products.
struct Dots {
  const float* src;      // the first input; the next one lies c further
  const float* weights;  // the first row; likewise
  std::int64_t c;
  float* sums;  // [inputs, kBlock]
};

template <int rows, int inputs>
struct Accumulators {
  Vec acc[rows][inputs];

  template <class Load>
  void step(const Load& load, const float* src, const float* weights, std::int64_t c) {
    Vec x[inputs];
#pragma GCC unroll 8
    for (int input = 0; input < inputs; ++input) x[input] = load(src + input * c);
#pragma GCC unroll 8
    for (int row = 0; row < rows; ++row) {
      const Vec w = load(weights + row * c);
#pragma GCC unroll 8
      for (int input = 0; input < inputs; ++input)
        acc[row][input] = at::vec::fmadd(w, x[input], acc[row][input]);
    }
  }

  // Columns [begin, end), whole blocks of 16: one cache line of each row.
  void add(const Dots& dots, std::int64_t begin, std::int64_t end, std::int64_t ahead) {
    const auto load = [](const float* at) { return Vec::loadu(at); };
    for (std::int64_t i = begin; i < end; i += kBlock) {
#pragma GCC unroll 8
      for (int row = 0; row < rows; ++row)
        __builtin_prefetch(dots.weights + row * dots.c + i + ahead, 0, 3);
#pragma GCC unroll 2
      for (int v = 0; v < kBlockVectors; ++v) {
        const std::int64_t at = i + v * kLanes;
        step(load, dots.src + at, dots.weights + at, dots.c);
      }
    }
  }

  void add_all(const Dots& dots) {
    const std::int64_t whole = dots.c / kBlock * kBlock;
    const std::int64_t here = std::max<std::int64_t>(0, whole - kAhead);
    add(dots, 0, here, kAhead);
    add(dots, here, whole, kAhead + rows * dots.c - whole);  // the rows that come next
    for (std::int64_t i = whole; i < dots.c; i += kLanes) {
      const auto count = static_cast<int>(std::min<std::int64_t>(kLanes, dots.c - i));
      step([count](const float* at) { return Vec::loadu(at, count); }, dots.src + i,
           dots.weights + i, dots.c);
    }
  }
};

// By halves, which vectorises and rounds little.
inline float sum_of(const Vec& x) {
  float lanes[kLanes];
  x.store(lanes);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

using RunDots = void (*)(const Dots&);

template <int rows, int inputs>
void run_dots(const Dots& dots) {
  Accumulators<rows, inputs> sums;
#pragma GCC unroll 8
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
    for (int input = 0; input < inputs; ++input) sums.acc[row][input] = Vec(0.0F);
  }
  sums.add_all(dots);
  for (int row = 0; row < rows; ++row) {
    for (int input = 0; input < inputs; ++input)
      dots.sums[input * kBlock + row] = sum_of(sums.acc[row][input]);
  }
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

// Bias and activation of `rows` sums, whose place in a vector does not change their bits.
void store(const Linear& linear, std::int64_t input, std::int64_t row, int rows, float* sums) {
  if (linear.bias != nullptr) {
    for (int i = 0; i < rows; ++i) sums[i] += linear.bias[row + i];
  }
  activate(sums, sums, kBlock, linear.activation);
  std::copy(sums, sums + rows, linear.dst + input * linear.k + row);
}

}  // namespace

namespace TORCHALGO_ISA {

void run_linear(const Linear& linear, std::int64_t begin, std::int64_t end) {
  const Strips inputs(linear.n, kMaxInputs);
  if (inputs.count == 0) return;
  const Strips rows(end - begin, kRowsOf[(linear.n + inputs.count - 1) / inputs.count - 1]);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = begin + rows.begin(i);
    const int row_count = rows.size(i);
    for (std::int64_t j = 0; j < inputs.count; ++j) {
      const std::int64_t input = inputs.begin(j);
      const int input_count = inputs.size(j);
      float sums[kMaxInputs][kBlock] = {};
      kDots[input_count - 1][row_count - 1](
          {linear.src + input * linear.c, linear.weights + row * linear.c, linear.c, sums[0]});
      for (int x = 0; x < input_count; ++x) store(linear, input + x, row, row_count, sums[x]);
    }
  }
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
