// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/layout.h"
#include "ir/post_op.h"

namespace torchalgo {

enum class DType : std::uint8_t { kF64, kF32, kTf32, kF16, kBf16 };
enum class Direction : std::uint8_t { kForward, kBackwardData, kBackwardFilter };

/// The epilogue as the form that most kernels have: act(result + bias + residual).
struct BiasAddActivation {
  bool bias = false;
  bool add = false;
  std::optional<PostOp> activation;
  bool operator==(const BiasAddActivation&) const = default;
};

/// A convolution; sizes in elements. 1-D is 2-D with h = r = 1; `is_3d` adds d, t and the stride,
/// padding and dilation of d. For every Direction, the sizes are those of the forward convolution.
/// A transposed convolution is a kBackwardData problem: its result has the sizes of src. Padding is
/// symmetric; padding on one side only is an operation of its own in front.
struct ConvProblem {
  Direction direction = Direction::kForward;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, d = 1, h = 1, w = 1;  // src     [n, c, (d,) h, w]
  std::int64_t k = 1, t = 1, r = 1, s = 1;         // weights [k, c / groups, (t,) r, s]
  std::int64_t stride_d = 1, stride_h = 1, stride_w = 1;
  std::int64_t pad_d = 0, pad_h = 0, pad_w = 0;
  std::int64_t dilation_d = 1, dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;
  bool is_3d = false;
  Epilogue epilogue;
  bool operator==(const ConvProblem&) const = default;
};

/// Whether the filter of a 2-D convolution is 1x1, without stride, padding or groups.
[[nodiscard]] constexpr bool is_pointwise(const ConvProblem& conv) {
  return conv.r * conv.s * conv.stride_h * conv.stride_w * conv.groups == 1 &&
         conv.pad_h + conv.pad_w == 0;
}

enum class PoolKind : std::uint8_t { kMax, kAverage, kAdaptiveAverage };

/// A 2-D pooling. kAdaptiveAverage: window i of p covers rows floor(i h / p) to ceil((i + 1) h /
/// p); it has no r, s, stride, pad. p, q are given in the adaptive case and follow from the rest
/// otherwise.
struct PoolProblem {
  PoolKind kind = PoolKind::kMax;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  std::int64_t r = 1, s = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;  // kMax only
  bool ceil_mode = false;
  bool count_include_pad = true;  // kAverage only
  std::int64_t p = 1, q = 1;      // kAdaptiveAverage only
  bool operator==(const PoolProblem&) const = default;
};

enum class EltwiseKind : std::uint8_t { kActivation, kAdd, kMul };

/// Element by element. kActivation: `epilogue` holds the one activation. kAdd, kMul: two tensors of
/// one shape, or, with `channelwise`, a second one of [n, c, 1, 1]; `epilogue` may add an
/// activation.
struct EltwiseProblem {
  EltwiseKind kind = EltwiseKind::kActivation;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  bool channelwise = false;
  Epilogue epilogue;
  bool operator==(const EltwiseProblem&) const = default;
};

/// y = x * scale[c] + shift[c]: a batch norm in eval mode that no convolution could absorb.
struct ScaleShiftProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  Epilogue epilogue;
  bool operator==(const ScaleShiftProblem&) const = default;
};

/// y = (x - mean) / sqrt(variance + epsilon) * scale[c] + shift[c] with the mean and the variance
/// of the c channels of a pixel.
struct LayerNormProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  double epsilon = 1e-5;  // from 0 to 1
  bool operator==(const LayerNormProblem&) const = default;
};

/// Concatenation along the channels of tensors [n, c[i], h, w], then shuffled in `groups` as by a
/// ShuffleProblem, if these are more than 1.
struct ConcatProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, h = 1, w = 1;
  std::vector<std::int64_t> c;
  std::int64_t groups = 1;
  bool operator==(const ConcatProblem&) const = default;
};

/// The k channels from `begin` on of a tensor [n, c, h, w]: a part of a split, chunk or narrow.
struct SliceProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  std::int64_t begin = 0, k = 1;
  bool operator==(const SliceProblem&) const = default;
};

/// The channel shuffle of ShuffleNet: channel i * groups + j of the result is channel j * (c /
/// groups) + i.
struct ShuffleProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 2, h = 1, w = 1;
  std::int64_t groups = 2;
  bool operator==(const ShuffleProblem&) const = default;
};

enum class ResizeKind : std::uint8_t { kNearest, kBilinear };

/// Up- or down-sampling to [n, c, p, q]; `align_corners` is kBilinear's. If the input size changes,
/// p and q stay as they are. If both scale factors are above 0, the factors stay instead, and p = h
/// * scale_h, q = w * scale_w.
struct ResizeProblem {
  ResizeKind kind = ResizeKind::kNearest;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1, p = 1, q = 1;
  std::int64_t scale_h = 0, scale_w = 0;
  bool align_corners = false;
  bool operator==(const ResizeProblem&) const = default;
};

/// dst [n, k] = src [n, c] * weights [k, c]^T.
struct LinearProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, k = 1;
  Epilogue epilogue;
  bool operator==(const LinearProblem&) const = default;
};

/// A change of layout.
struct TransformProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, d = 1, h = 1, w = 1;
  bool is_3d = false;
  Layout from = Layout::kNchw, to = Layout::kNhwc;
  bool operator==(const TransformProblem&) const = default;
};

struct ConvChainProblem;

/// One operation with its sizes. To add a kind of operation, define its struct and add it to this
/// list. Then add the overloads that the compiler reports missing: in problem.cpp, problem_text.cpp
/// and arithmetic.cpp, in the profiler's reference and in the planner's training graph.
using Problem = std::variant<ConvProblem, PoolProblem, EltwiseProblem, ScaleShiftProblem,
                             LayerNormProblem, ConcatProblem, SliceProblem, ShuffleProblem,
                             ResizeProblem, LinearProblem, TransformProblem, ConvChainProblem>;

/// Operations in one call, each of which reads what the one before it makes; nobody else sees that
/// tensor. The first one may be a chain head (see is_chain_head), all others are forward 2-D
/// convolutions. There are two layers or more, and only the last one may have "+add".
struct ConvChainProblem {
  std::vector<Problem> layers;
  bool operator==(const ConvChainProblem&) const = default;
};

[[nodiscard]] std::string_view to_string(DType dtype);
[[nodiscard]] std::string_view to_string(Direction direction);
[[nodiscard]] std::string_view to_string(PostOp op);

/// The one spelling: cache key, test id, benchmark row, error text. For a convolution
/// `fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu`; all forms: docs/problems.md.
[[nodiscard]] std::string to_string(const Problem& problem);

/// The inverse: parse_problem(to_string(p)) == p.
/// @throws Error  naming the text and the place at which it stops being a problem, or a size out of
/// range.
[[nodiscard]] Problem parse_problem(std::string_view text);

/// Sizes [n, k, (p_d,) p, q] of the convolution's dst by the usual floor formula.
[[nodiscard]] std::vector<std::int64_t> conv_dst_sizes(const ConvProblem& conv);

/// Logical sizes of the result: [n, c, h, w] ([n, c, d, h, w] if 3-D, [n, k] if linear).
[[nodiscard]] std::vector<std::int64_t> result_sizes(const Problem& problem);

/// Logical sizes of the data inputs in call order (weights not included; the residual of "+add"
/// last).
[[nodiscard]] std::vector<std::vector<std::int64_t>> input_sizes(const Problem& problem);

/// The same operation on inputs of other sizes. @throws Error if ranks or channels do not fit it.
[[nodiscard]] Problem with_input_sizes(const Problem& problem,
                                       const std::vector<std::vector<std::int64_t>>& sizes);

/// Returns the operations that the problem consists of, in order: the layers of a chain, and any
/// other problem itself. Each has the weights of at most one layer of the model.
[[nodiscard]] std::vector<Problem> layers_of(const Problem& problem);

/// Sizes of the weights that a model holds for it, kcrs: [k, c / groups, (t,) r, s], [k, c], [c];
/// empty: it has none. A bias is not among them.
/// @throws InternalError  for a chain, whose layers have their own.
[[nodiscard]] std::vector<std::int64_t> weight_sizes(const Problem& problem);

/// Sizes of the bias or shift that a model holds for it, [k] or [c]; empty: it has none. An
/// operation with one weight per channel, which is a scale, always has a shift.
/// @throws InternalError  for a chain, whose layers have their own.
[[nodiscard]] std::vector<std::int64_t> bias_sizes(const Problem& problem);

/// Whether it is an activation by itself.
[[nodiscard]] bool is_lone_activation(const Problem& problem);

/// Returns whether `problem` is a convolution or a chain of them.
[[nodiscard]] bool is_convolution(const Problem& problem);

/// Returns whether `problem` may be the first layer of a chain, in front of 1x1 convolutions. Such
/// layers are a scale-shift, a product per channel with a second input (each may be followed by an
/// activation), and a global average pooling.
[[nodiscard]] bool is_chain_head(const Problem& problem);

/// The chain that `problem`, a convolution, a chain or its head, becomes with one more convolution
/// behind it. @throws InternalError  unless `next` reads what `problem` makes.
[[nodiscard]] ConvChainProblem with_next(const Problem& problem, const ConvProblem& next);

[[nodiscard]] DType dtype_of(const Problem& problem);

/// The epilogue of the kinds that have one, else empty; a chain's is its last layer's.
[[nodiscard]] const Epilogue& epilogue_of(const Problem& problem);

/// A copy with another epilogue. @throws InternalError for a kind that has none.
[[nodiscard]] Problem with_epilogue(const Problem& problem, Epilogue epilogue);

[[nodiscard]] bool has(const Epilogue& epilogue, PostOp op);

/// The epilogue as act(result + bias + residual); nothing if its order is another.
[[nodiscard]] std::optional<BiasAddActivation> as_bias_add_activation(const Epilogue& epilogue);

}  // namespace torchalgo
