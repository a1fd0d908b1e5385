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

/// The layouts of the three tensors of a convolution, each kNchw or kNhwc (with d after c if 3-D).
/// A gradient has the layout of its tensor. A residual has the layout of dst.
struct Layouts {
  Layout src = Layout::kNchw;
  Layout weights = Layout::kNchw;
  Layout dst = Layout::kNchw;
  auto operator<=>(const Layouts&) const = default;
};

[[nodiscard]] inline Layouts layouts_of(const Primitive& primitive) {
  return {primitive.src, weights_layout(primitive), primitive.dst};
}

/// Returns the eight choices of layouts. The layout of dst changes fastest.
[[nodiscard]] std::vector<Layouts> all_layouts();

/// Sizes of the tensors and parameters of a convolution, without depth unless it is 3-D.
struct ConvShape {
  std::vector<std::int64_t> src, weights, dst;                 // [n, c, (d,) h, w] and so on
  std::vector<std::int64_t> stride, pad, pad_after, dilation;  // zeros before the image, and after
};
[[nodiscard]] ConvShape shape_of(const ConvProblem& conv);

/// The ids of the tensors in a variant pack, which holds their pointers.
inline constexpr std::int64_t kSrcUid = 'x';       // or its gradient
inline constexpr std::int64_t kWeightsUid = 'w';   // or their gradient
inline constexpr std::int64_t kDstUid = 'y';       // or its gradient
inline constexpr std::int64_t kBiasUid = 'b';      // [1, k, 1, 1] of the problem's type; + bias
inline constexpr std::int64_t kResidualUid = 'z';  // + add

/// The alignment in bytes that every tensor is assumed to have. Torch's allocator aligns to 512,
/// views of a batch may have less. Below 16, most tensor-core engines refuse.
inline constexpr std::int64_t kAlignment = 16;

/// A finalized operation graph and the parts that it was made of.
struct OperationGraph {
  Pattern pattern;
  std::vector<OwnedDescriptor> parts;
  OwnedDescriptor graph;
};

/// Return cuDNN's type for the tensors of a problem, and the type in which it accumulates.
[[nodiscard]] DataType data_type(DType dtype);
[[nodiscard]] DataType compute_type(DType dtype);

/// Builds the operation graph of `conv` for its pattern_of(). It needs no GPU. `handle` is torch's
/// handle. If it is null, the graph is for the device properties that its engines get.
/// @throws StatusError  if cuDNN refuses the operation itself (a shape that it cannot express).
[[nodiscard]] OperationGraph build_graph(const Api& api, const ConvProblem& conv,
                                         const Layouts& layouts, Handle handle = nullptr,
                                         std::int64_t alignment = kAlignment);

}  // namespace torchalgo::cudnn
