// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "cudnn_algo/descriptor.h"
#include "cudnn_algo/engine.h"
#include "ir/layout.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// How the three tensors of a convolution lie, each kNchw or kNhwc (with d after c if 3-D); of a
/// gradient as of what it is the gradient of. A residual lies as dst does.
struct Layouts {
  Layout src = Layout::kNchw;
  Layout weights = Layout::kNchw;
  Layout dst = Layout::kNchw;
  auto operator<=>(const Layouts&) const = default;
};

[[nodiscard]] inline Layouts layouts_of(const Primitive& primitive) {
  return {primitive.src, weights_layout(primitive), primitive.dst};
}

/// Returns the eight choices, the layout of dst changing fastest.
[[nodiscard]] std::vector<Layouts> all_layouts();

/// Sizes of the tensors and parameters of a convolution, without depth unless it is 3-D.
struct ConvShape {
  std::vector<std::int64_t> src, weights, dst;  // [n, c, (d,) h, w] and alike
  std::vector<std::int64_t> stride, pad, dilation;
};
[[nodiscard]] ConvShape shape_of(const ConvProblem& conv);

/// Ids by which a variant pack gives each tensor its pointer.
inline constexpr std::int64_t kSrcUid = 'x';       // or its gradient
inline constexpr std::int64_t kWeightsUid = 'w';   // or their gradient
inline constexpr std::int64_t kDstUid = 'y';       // or its gradient
inline constexpr std::int64_t kBiasUid = 'b';      // [1, k, 1, 1] of the problem's type; + bias
inline constexpr std::int64_t kResidualUid = 'z';  // + add

/// Bytes to a multiple of which every tensor is assumed to be aligned: torch's allocator gives 512,
/// views of a batch may give less. Below 16 most tensor-core engines refuse.
inline constexpr std::int64_t kAlignment = 16;

/// A finalized operation graph and the parts that it was made of.
struct OperationGraph {
  Pattern pattern;
  std::vector<OwnedDescriptor> parts;
  OwnedDescriptor graph;
};

/// cuDNN's type of the tensors of a problem, and the type in which it accumulates.
[[nodiscard]] DataType data_type(DType dtype);
[[nodiscard]] DataType compute_type(DType dtype);

/// The operation graph of `conv` for its pattern_of(); needs no GPU. `handle`: torch's, on a
/// machine with one; null: the graph is for the device properties that its engines are given.
/// @throws StatusError  if cuDNN refuses the operation itself (a shape that it cannot express).
[[nodiscard]] OperationGraph build_graph(const Api& api, const ConvProblem& conv,
                                         const Layouts& layouts, Handle handle = nullptr,
                                         std::int64_t alignment = kAlignment);

}  // namespace torchalgo::cudnn
