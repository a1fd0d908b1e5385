// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/resize.h"

#include "cpu_algo/kernels/vec.h"

namespace torchalgo::kernels::TORCHALGO_ISA {
namespace {

constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

inline std::int64_t nearest_index(std::int64_t index, std::int64_t in, std::int64_t out) {
  const float scale = static_cast<float>(in) / static_cast<float>(out);
  return min(static_cast<std::int64_t>(static_cast<float>(index) * scale), in - 1);
}

/// A source position along one axis: dst = (1 - weight) * src[low] + weight * src[high].
struct Position {
  std::int64_t low, high;
  float weight;
};

/// Returns the source position of a dst index. It computes in double, so the weight is exact for a
/// large index too; torch rounds the index to float.
inline Position bilinear_position(std::int64_t index, std::int64_t in, std::int64_t out,
                                  bool align_corners) {
  double place = 0;
  if (align_corners) {
    if (out > 1) place = static_cast<double>(index * (in - 1)) / static_cast<double>(out - 1);
  } else {
    const double scale = static_cast<double>(in) / static_cast<double>(out);
    // The product is rounded, as in torch. A fused difference could choose other neighbours.
    const volatile double product = (static_cast<double>(index) + 0.5) * scale;
    place = product - 0.5;
    place = place < 0 ? 0 : place;
  }
  const std::int64_t low = min(static_cast<std::int64_t>(place), in - 1);
  // A side that keeps its size has no neighbours, and torch has none either. A weight of 0 is not
  // enough, since 0 times an infinity or a NaN is a NaN.
  if (in == out) return {low, low, 0};
  return {low, min(low + 1, in - 1), static_cast<float>(place - static_cast<double>(low))};
}

/// The four neighbours of a dst pixel and their weights.
template <class Element>
struct Corners {
  const Element* src[4];
  float weight[4];
};

/// Copies the lanes of one pixel. `fixed_lanes` is 16 if the number of lanes is a constant, and 0
/// if not.
template <int fixed_lanes, class Element>
inline void copy_lanes(const Element* src, Element* dst, std::int64_t lanes) {
  std::int64_t lane = 0;
  for (; lane + kLanes <= lanes; lane += kLanes) Vec::loadu(src + lane).store(dst + lane);
  for (; fixed_lanes == 0 && lane < lanes; ++lane) dst[lane] = src[lane];
}

template <int fixed_lanes, class Element>
inline void blend_lanes(const Corners<Element>& corners, Element* dst, std::int64_t lanes) {
  Vec weights[4];
  for (int i = 0; i < 4; ++i) weights[i] = Vec(corners.weight[i]);
  std::int64_t lane = 0;
  for (; lane + kLanes <= lanes; lane += kLanes) {
    Vec sum = Vec::loadu(corners.src[0] + lane) * weights[0];
    for (int i = 1; i < 4; ++i) {
      sum = fmadd(Vec::loadu(corners.src[i] + lane), weights[i], sum);
    }
    sum.store(dst + lane);
  }
  for (; fixed_lanes == 0 && lane < lanes; ++lane) {
    float sum = to_float(corners.src[0][lane]) * corners.weight[0];
    for (int i = 1; i < 4; ++i) sum += to_float(corners.src[i][lane]) * corners.weight[i];
    dst[lane] = from_float<Element>(sum);
  }
}

/// Computes columns [first, last) of rows [begin, end).
template <int fixed_lanes, class Element = float>
void resize_nearest(const Resize& resize, std::int64_t begin, std::int64_t end, std::int64_t first,
                    std::int64_t last) {
  const std::int64_t lanes = fixed_lanes > 0 ? fixed_lanes : resize.lanes;
  std::int64_t columns[kResizeColumns];
  for (std::int64_t q = first; q < last; ++q) {
    columns[q - first] = nearest_index(q, resize.w, resize.q) * lanes;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t y = nearest_index(row % resize.p, resize.h, resize.p);
    const Element* src =
        of<Element>(resize.src) + (row / resize.p * resize.h + y) * resize.w * lanes;
    Element* dst = of<Element>(resize.dst) + (row * resize.q + first) * lanes;
    for (std::int64_t i = 0; i < last - first; ++i, dst += lanes) {
      copy_lanes<fixed_lanes>(src + columns[i], dst, lanes);
    }
  }
}

template <int fixed_lanes, class Element = float>
void resize_bilinear(const Resize& resize, std::int64_t begin, std::int64_t end, std::int64_t first,
                     std::int64_t last) {
  const std::int64_t lanes = fixed_lanes > 0 ? fixed_lanes : resize.lanes;
  Position columns[kResizeColumns];
  for (std::int64_t q = first; q < last; ++q) {
    Position& column = columns[q - first];
    column = bilinear_position(q, resize.w, resize.q, resize.align_corners);
    column.low *= lanes;
    column.high *= lanes;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const Position y = bilinear_position(row % resize.p, resize.h, resize.p, resize.align_corners);
    const Element* image = of<Element>(resize.src) + row / resize.p * resize.h * resize.w * lanes;
    const Element* low = image + y.low * resize.w * lanes;
    const Element* high = image + y.high * resize.w * lanes;
    Element* dst = of<Element>(resize.dst) + (row * resize.q + first) * lanes;
    for (std::int64_t i = 0; i < last - first; ++i, dst += lanes) {
      const Position& x = columns[i];
      const Corners<Element> corners = {{low + x.low, low + x.high, high + x.low, high + x.high},
                                        {(1 - y.weight) * (1 - x.weight), (1 - y.weight) * x.weight,
                                         y.weight * (1 - x.weight), y.weight * x.weight}};
      blend_lanes<fixed_lanes>(corners, dst, lanes);
    }
  }
}

template <class Element>
void run(const Resize& resize, std::int64_t begin, std::int64_t end) {
  for (std::int64_t first = 0; first < resize.q; first += kResizeColumns) {
    const std::int64_t last = min(first + kResizeColumns, resize.q);
    const auto columns = [&]<int lanes>() {
      resize.is_nearest ? resize_nearest<lanes, Element>(resize, begin, end, first, last)
                        : resize_bilinear<lanes, Element>(resize, begin, end, first, last);
    };
    resize.lanes == 16 ? columns.template operator()<16>() : columns.template operator()<0>();
  }
}

}  // namespace

void run_resize(const Resize& resize, std::int64_t begin, std::int64_t end) {
  run<float>(resize, begin, end);
}

void run_resize_bf16(const Resize& resize, std::int64_t begin, std::int64_t end) {
  run<Bf16>(resize, begin, end);
}

}  // namespace torchalgo::kernels::TORCHALGO_ISA
