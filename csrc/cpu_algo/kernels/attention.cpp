// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/attention.h"

#include <algorithm>
#include <limits>

#include "cpu_algo/kernels/epilogue.h"

namespace torchalgo::kernels {
namespace {

// The rows and vectors of a register tile. Their products, the vectors of B and one value of A fit
// into the registers: 32 of AVX-512, 16 of the others.
constexpr int kRows = 6;
constexpr int kVectors = kNativeLanes == 16 ? 4 : kParts == 1 ? 2 : 1;

// C[row][column] = factor[row] * sum over k of A[row][k] * B[k][column]. Strides count floats.
struct Product {
  const float* a;
  std::int64_t a_row, a_column;
  const float* b;
  std::int64_t b_row;
  std::int64_t depth;
  float* c;
  std::int64_t c_row;
  const float* factors;
};

template <int rows, int vectors>
void multiply_tile(const Product& product) {
  Vec sums[rows][vectors];
#pragma GCC unroll 6
  for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[row][v] = Vec(0.0F);
  }
  const float* a = product.a;
  const float* b = product.b;
  for (std::int64_t k = 0; k < product.depth; ++k) {
    Vec columns[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) columns[v] = Vec::loadu(b + v * kLanes);
#pragma GCC unroll 6
    for (int row = 0; row < rows; ++row) {
      const Vec x(a[row * product.a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[row][v] = fmadd(x, columns[v], sums[row][v]);
    }
    a += product.a_column;
    b += product.b_row;
  }
#pragma GCC unroll 6
  for (int row = 0; row < rows; ++row) {
    const Vec factor(product.factors[row]);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      (sums[row][v] * factor).store(product.c + row * product.c_row + v * kLanes);
  }
}

template <int vectors>
void multiply_rows(const Product& product, int rows) {
  switch (rows) {
    case 1:
      return multiply_tile<1, vectors>(product);
    case 2:
      return multiply_tile<2, vectors>(product);
    case 3:
      return multiply_tile<3, vectors>(product);
    case 4:
      return multiply_tile<4, vectors>(product);
    case 5:
      return multiply_tile<5, vectors>(product);
    default:
      return multiply_tile<kRows, vectors>(product);
  }
}

// `columns` is a multiple of kLanes.
void multiply(Product product, int rows, std::int64_t columns) {
  const auto advance = [&](int vectors) {
    product.b += vectors * kLanes;
    product.c += vectors * kLanes;
    columns -= vectors * kLanes;
  };
  for (; columns >= kVectors * kLanes; advance(kVectors)) multiply_rows<kVectors>(product, rows);
  for (; columns > 0; advance(1)) multiply_rows<1>(product, rows);
}

float largest_lane(const Vec& x) {
  float lanes[kLanes];
  x.store(lanes);
  float largest = lanes[0];
  for (const float lane : lanes) {
    if (!(lane <= largest)) largest = lane;  // also if it is a NaN
    if (largest != largest) break;
  }
  return largest;
}

// Replaces x by e^(x - largest) in a row of `padded` floats, a multiple of kLanes. Returns their
// sum. Those from `keys` on do not count. As in torch, a row with a NaN or +infinity becomes NaNs,
// and so does one of -infinity only.
float exponentials(float* row, std::int64_t keys, std::int64_t padded) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::fill(row + keys, row + padded, kNone);
  Vec largest(kNone);
  for (std::int64_t i = 0; i < padded; i += kLanes) largest = maximum(Vec::loadu(row + i), largest);
  const Vec top(largest_lane(largest));
  Vec sum(0.0F);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const Vec x = exp_minus(top - Vec::loadu(row + i));
    x.store(row + i);
    sum = sum + x;
  }
  return sum_of(sum);
}

std::int64_t padded_to_lanes(std::int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

// The work on one head, with its matrices k and v packed: k transposed, both with rows of whole
// vectors.
class Head {
 public:
  Head(const Attention& attention, float* scratch)
      : attention_(attention),
        padded_keys_(padded_to_lanes(attention.keys)),
        padded_width_(padded_to_lanes(attention.width)),
        keys_(scratch),
        values_(keys_ + attention.depth * padded_keys_),
        scores_(values_ + attention.keys * padded_width_),
        results_(scores_ + kRows * padded_keys_) {}

  static std::int64_t floats(const Attention& attention) {
    const std::int64_t keys = padded_to_lanes(attention.keys);
    const std::int64_t width = padded_to_lanes(attention.width);
    return (attention.depth + kRows) * keys + (attention.keys + kRows) * width;
  }

  void pack(std::int64_t image, std::int64_t head) {
    image_ = image;
    head_ = head;
    const HeadStrides& k = attention_.k_strides;
    const HeadStrides& v = attention_.v_strides;
    pack_rows(of(attention_.k, k), k.column, k.row, attention_.depth, attention_.keys, keys_,
              padded_keys_);
    pack_rows(of(attention_.v, v), v.row, v.column, attention_.keys, attention_.width, values_,
              padded_width_);
  }

  void run(std::int64_t query, int rows) const {
    const HeadStrides& q = attention_.q_strides;
    float factors[kRows];
    std::fill(factors, factors + kRows, attention_.scale);
    multiply({of(attention_.q, q) + query * q.row, q.row, q.column, keys_, padded_keys_,
              attention_.depth, scores_, padded_keys_, factors},
             rows, padded_keys_);
    for (int row = 0; row < rows; ++row) {
      float* const scores = scores_ + row * padded_keys_;
      if (attention_.bias != nullptr) add_bias(query + row, scores);
      factors[row] = 1.0F / exponentials(scores, attention_.keys, padded_keys_);
    }
    multiply({scores_, padded_keys_, 1, values_, padded_width_, attention_.keys, results_,
              padded_width_, factors},
             rows, padded_width_);
    store(query, rows);
  }

 private:
  template <class Float>
  [[nodiscard]] Float* of(Float* tensor, const HeadStrides& strides) const {
    return tensor + image_ * strides.image + head_ * strides.head;
  }

  static void pack_rows(const float* from, std::int64_t row, std::int64_t column, std::int64_t rows,
                        std::int64_t columns, float* to, std::int64_t to_row) {
    for (std::int64_t i = 0; i < rows; ++i, from += row, to += to_row) {
      if (column == 1) {
        std::copy(from, from + columns, to);
      } else {
        for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j * column];
      }
      std::fill(to + columns, to + to_row, 0.0F);
    }
  }

  void add_bias(std::int64_t query, float* scores) const {
    const HeadStrides& strides = attention_.bias_strides;
    const float* const bias = of(attention_.bias, strides) + query * strides.row;
    for (std::int64_t i = 0; i < attention_.keys; ++i) scores[i] += bias[i * strides.column];
  }

  void store(std::int64_t query, int rows) const {
    const HeadStrides& strides = attention_.dst_strides;
    float* const dst = of(attention_.dst, strides) + query * strides.row;
    if (strides.column == 1) {
      for (int row = 0; row < rows; ++row) {
        const float* const from = results_ + row * padded_width_;
        std::copy(from, from + attention_.width, dst + row * strides.row);
      }
      return;
    }
    for (std::int64_t i = 0; i < attention_.width; ++i) {
      for (int row = 0; row < rows; ++row)
        dst[i * strides.column + row * strides.row] = results_[row * padded_width_ + i];
    }
  }

  const Attention& attention_;
  std::int64_t padded_keys_, padded_width_;
  float* keys_;     // [depth, padded keys]
  float* values_;   // [keys, padded width]
  float* scores_;   // [kRows, padded keys]
  float* results_;  // [kRows, padded width]
  std::int64_t image_ = 0, head_ = 0;
};

}  // namespace

namespace TORCHALGO_ISA {

std::int64_t attention_scratch_bytes(const Attention& attention) {
  return (Head::floats(attention) * static_cast<std::int64_t>(sizeof(float)) + 63) / 64 * 64;
}

void run_attention(const Attention& attention, std::int64_t begin, std::int64_t end,
                   void* scratch) {
  Head head(attention, static_cast<float*>(scratch));
  std::int64_t packed = -1;
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t index = task / attention.parts, part = task % attention.parts;
    if (index != packed) head.pack(index / attention.heads, index % attention.heads);
    packed = index;
    const std::int64_t last = attention.queries * (part + 1) / attention.parts;
    for (std::int64_t query = attention.queries * part / attention.parts; query < last;
         query += kRows) {
      head.run(query, static_cast<int>(std::min<std::int64_t>(kRows, last - query)));
    }
  }
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
