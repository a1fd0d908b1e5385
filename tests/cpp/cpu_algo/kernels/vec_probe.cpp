// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/vec_probe.h"

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels {
namespace {

Vec result_of(VecOperation operation, const Vec& a, const Vec& b, const Vec& c, float first) {
  switch (operation) {
    case VecOperation::kAdd:
      return a + b;
    case VecOperation::kSubtract:
      return a - b;
    case VecOperation::kMultiply:
      return a * b;
    case VecOperation::kDivide:
      return a / b;
    case VecOperation::kFmadd:
      return fmadd(a, b, c);
    case VecOperation::kFnmadd:
      return fnmadd(a, b, c);
    case VecOperation::kClampMin:
      return clamp_min(a, b);
    case VecOperation::kClampMax:
      return clamp_max(a, b);
    case VecOperation::kMaximum:
      return maximum(a, b);
    case VecOperation::kWhereLess:
      return where_less(a, b, c, a);
    case VecOperation::kWhereAtMost:
      return where_at_most(a, b, c, a);
    case VecOperation::kShiftLeftBy23:
      return shift_left(a, 23);
    case VecOperation::kSpread:
      break;
  }
  return Vec(first);
}

}  // namespace

namespace TORCHALGO_ISA {

int vec_lanes() { return kLanes; }

void run_vec(VecOperation operation, const float* a, const float* b, const float* c, float* dst) {
  result_of(operation, Vec::loadu(a), Vec::loadu(b), Vec::loadu(c), *a).store(dst);
}

void interleave_vecs(const float* a, const float* b, float* dst) {
  const auto [low, high] = interleave2(Vec::loadu(a), Vec::loadu(b));
  low.store(dst);
  high.store(dst + kLanes);
}

float sum_of_lanes(const float* src) { return sum_of(Vec::loadu(src)); }

void load_first(const float* src, std::int64_t count, float* dst) {
  Vec::loadu(src, count).store(dst);
}

void store_first(const float* src, std::int64_t count, float* dst) {
  Vec::loadu(src).store(dst, count);
}

void widen_first(const std::uint16_t* src, std::int64_t count, float* dst) {
  Vec::loadu(src, count).store(dst);
}

void round_first(const float* src, std::int64_t count, std::uint16_t* dst) {
  Vec::loadu(src).store(dst, count);
}

}  // namespace TORCHALGO_ISA
}  // namespace torchalgo::kernels
