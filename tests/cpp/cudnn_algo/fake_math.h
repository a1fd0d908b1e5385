// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <cstdint>
#include <vector>

// What the fake cuDNN computes: convolutions by definition, in double, on CPU memory of any
// strides.

namespace torchalgo::cudnn::fake {

enum class Element : std::uint8_t { kF64, kF32, kF16, kBf16 };

/// Where a tensor lies: sizes and strides in elements, outermost dimension first.
struct Place {
  Element element = Element::kF32;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t alignment = 16;  // bytes that the pointer is promised to be a multiple of
};

[[nodiscard]] std::int64_t element_bytes(Element element);
[[nodiscard]] std::int64_t element_count(const Place& place);

/// The elements in logical order (the last dimension fastest), and back.
[[nodiscard]] std::vector<double> read(const Place& place, const void* data);
void write(const Place& place, const std::vector<double>& values, void* data);

/// Depth, height, width; a 2-D convolution has depth 1.
using Triple = std::array<std::int64_t, 3>;

struct Geometry {
  std::int64_t n = 1, c = 1, k = 1, groups = 1;
  Triple src = {1, 1, 1}, filter = {1, 1, 1}, dst = {1, 1, 1};
  Triple pad = {0, 0, 0}, pad_after = {0, 0, 0}, stride = {1, 1, 1}, dilation = {1, 1, 1};
};

/// The geometry of x [n, c, spatial...], w [k, c / groups, spatial...], y [n, k, spatial...].
[[nodiscard]] Geometry make_geometry(const std::vector<std::int64_t>& x,
                                     const std::vector<std::int64_t>& w,
                                     const std::vector<std::int64_t>& y,
                                     const std::vector<std::int64_t>& pad,
                                     const std::vector<std::int64_t>& pad_after,
                                     const std::vector<std::int64_t>& stride,
                                     const std::vector<std::int64_t>& dilation);

/// Whether y has the size that x, w and the rest give it.
[[nodiscard]] bool is_consistent(const Geometry& geometry);

enum class Role : std::uint8_t { kForward, kBackwardData, kBackwardFilter };

/// kForward: a = x, b = w, result y. kBackwardData: a = dy, b = w, result dx. kBackwardFilter: a =
/// x, b = dy, result dw.
[[nodiscard]] std::vector<double> convolve(Role role, const Geometry& geometry,
                                           const std::vector<double>& a,
                                           const std::vector<double>& b);

}  // namespace torchalgo::cudnn::fake
