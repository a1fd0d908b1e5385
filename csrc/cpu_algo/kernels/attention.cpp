// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/attention.h"

#include <algorithm>
#include <limits>

#include "cpu_algo/kernels/epilogue.h"
#include "cpu_algo/kernels/head_products.h"

namespace torchalgo::kernels {
namespace {

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
    return matrix_of(tensor, strides, image_, head_);
  }

  void add_bias(std::int64_t query, float* scores) const {
    const HeadStrides& strides = attention_.bias_strides;
    const float* const bias = of(attention_.bias, strides) + query * strides.row;
    for (std::int64_t i = 0; i < attention_.keys; ++i) scores[i] += bias[i * strides.column];
  }

  void store(std::int64_t query, int rows) const {
    const HeadStrides& strides = attention_.dst_strides;
    unpack_rows(results_, padded_width_, rows, attention_.width,
                of(attention_.dst, strides) + query * strides.row, strides.row, strides.column);
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
  return scratch_bytes(Head::floats(attention));
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
