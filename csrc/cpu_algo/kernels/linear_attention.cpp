// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include "cpu_algo/kernels/attention.h"
#include "cpu_algo/kernels/head_products.h"

namespace torchalgo::kernels {
namespace {

// The work on one head. The keys and queries are packed once, with rows of whole vectors. Sums and
// results are transposed, because models that use linear attention store images by channel.
class Head {
 public:
  Head(const LinearAttention& attention, float* scratch)
      : attention_(attention),
        padded_depth_(padded_to_lanes(attention.depth)),
        padded_queries_(padded_to_lanes(attention.queries)),
        keys_(scratch),
        queries_(keys_ + attention.keys * padded_depth_),
        sums_(queries_ + attention.depth * padded_queries_),
        results_(sums_ + (attention.width + 1) * padded_depth_) {}

  static std::int64_t floats(const LinearAttention& attention) {
    const std::int64_t depth = padded_to_lanes(attention.depth);
    const std::int64_t queries = padded_to_lanes(attention.queries);
    return (attention.keys + attention.width + 1) * depth +
           (attention.depth + attention.width + 1) * queries;
  }

  void run(std::int64_t image, std::int64_t head) const {
    const LinearAttention& a = attention_;
    const auto matrix = [&](auto* tensor, const HeadStrides& strides) {
      return matrix_of(tensor, strides, image, head);
    };
    pack_rows(matrix(a.k, a.k_strides), a.k_strides.row, a.k_strides.column, a.keys, a.depth, keys_,
              padded_depth_);
    pack_rows(matrix(a.q, a.q_strides), a.q_strides.column, a.q_strides.row, a.depth, a.queries,
              queries_, padded_queries_);
    rectify(keys_, a.keys * padded_depth_);
    rectify(queries_, a.depth * padded_queries_);

    // Row j of the sums is column j of v times the keys. The last row is the sum of the keys.
    const float one = 1;
    multiply_all({matrix(a.v, a.v_strides), a.v_strides.column, a.v_strides.row, keys_,
                  padded_depth_, a.keys, sums_, padded_depth_, nullptr},
                 a.width, padded_depth_);
    multiply_all({&one, 0, 0, keys_, padded_depth_, a.keys, sums_ + a.width * padded_depth_,
                  padded_depth_, nullptr},
                 1, padded_depth_);
    multiply_all({sums_, padded_depth_, 1, queries_, padded_queries_, a.depth, results_,
                  padded_queries_, nullptr},
                 a.width + 1, padded_queries_);
    divide();
    unpack_rows(results_, padded_queries_, a.width, a.queries, matrix(a.dst, a.dst_strides),
                a.dst_strides.column, a.dst_strides.row);
  }

 private:
  static void rectify(float* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kLanes)
      clamp_min(Vec::loadu(values + i), Vec(0.0F)).store(values + i);
  }

  static void multiply_all(Product product, std::int64_t rows, std::int64_t columns) {
    float factors[kRows];
    std::fill(factors, factors + kRows, 1.0F);
    product.factors = factors;
    for (; rows > 0; rows -= kRows) {
      multiply(product, static_cast<int>(std::min<std::int64_t>(kRows, rows)), columns);
      product.a += kRows * product.a_row;
      product.c += kRows * product.c_row;
    }
  }

  // Divides the results by their last row.
  void divide() const {
    const float* const divisors = results_ + attention_.width * padded_queries_;
    const Vec epsilon(attention_.epsilon);
    for (std::int64_t i = 0; i < padded_queries_; i += kLanes) {
      const Vec divisor = Vec::loadu(divisors + i) + epsilon;
      for (std::int64_t j = 0; j < attention_.width; ++j) {
        float* const at = results_ + j * padded_queries_ + i;
        (Vec::loadu(at) / divisor).store(at);
      }
    }
  }

  const LinearAttention& attention_;
  std::int64_t padded_depth_, padded_queries_;
  float* keys_;     // [keys, padded depth]
  float* queries_;  // [depth, padded queries]
  float* sums_;     // [width + 1, padded depth]
  float* results_;  // [width + 1, padded queries]
};

}  // namespace

namespace TORCHALGO_ISA {

std::int64_t linear_attention_scratch_bytes(const LinearAttention& attention) {
  return scratch_bytes(Head::floats(attention));
}

void run_linear_attention(const LinearAttention& attention, std::int64_t begin, std::int64_t end,
                          void* scratch) {
  const Head head(attention, static_cast<float*>(scratch));
  for (std::int64_t task = begin; task < end; ++task)
    head.run(task / attention.heads, task % attention.heads);
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
