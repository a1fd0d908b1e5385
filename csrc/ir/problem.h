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

/// Returns the type of the elements of a tensor in `layout`, in a problem of type `dtype`.
[[nodiscard]] constexpr DType element_type(Layout layout, DType dtype) {
  return is_typed(layout) ? DType::kBf16 : dtype;
}

/// An epilogue in the form that most kernels support: act(result + bias + residual).
struct BiasAddActivation {
  bool bias = false;
  bool add = false;
  std::optional<PostOp> activation;
  bool operator==(const BiasAddActivation&) const = default;
};

/// A convolution. Sizes are in elements. 1-D is 2-D with h = r = 1; `is_3d` adds d, t and the
/// stride, padding and dilation of d. For every Direction, the sizes are those of the forward
/// convolution. A transposed convolution is a kBackwardData problem: its result has the sizes of
/// src. The image has pad_h rows of zeros before it and pad_h + extra_h after it. The same holds
/// for columns. extra_h and extra_w may be negative, down to -pad_h and -pad_w. Only a 2-D forward
/// convolution has them.
struct ConvProblem {
  Direction direction = Direction::kForward;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, d = 1, h = 1, w = 1;  // src     [n, c, (d,) h, w]
  std::int64_t k = 1, t = 1, r = 1, s = 1;         // weights [k, c / groups, (t,) r, s]
  std::int64_t stride_d = 1, stride_h = 1, stride_w = 1;
  std::int64_t pad_d = 0, pad_h = 0, pad_w = 0;
  std::int64_t extra_h = 0, extra_w = 0;
  std::int64_t dilation_d = 1, dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;
  bool is_3d = false;
  Epilogue epilogue;
  bool operator==(const ConvProblem&) const = default;
};

/// Returns true if there are as many zeros before the image as after it.
[[nodiscard]] constexpr bool is_padded_evenly(const ConvProblem& conv) {
  return conv.extra_h == 0 && conv.extra_w == 0;
}

/// Returns true if there are no zeros around the image.
[[nodiscard]] constexpr bool is_unpadded(const ConvProblem& conv) {
  return conv.pad_d + conv.pad_h + conv.pad_w == 0 && is_padded_evenly(conv);
}

/// Returns true if the filter of a 2-D convolution is 1x1, without stride, padding or groups.
[[nodiscard]] constexpr bool is_pointwise(const ConvProblem& conv) {
  return conv.r * conv.s * conv.stride_h * conv.stride_w * conv.groups == 1 && is_unpadded(conv);
}

enum class PoolKind : std::uint8_t { kMax, kAverage, kAdaptiveAverage };

/// A 2-D pooling. kAdaptiveAverage: window i of p covers rows floor(i h / p) to ceil((i + 1) h /
/// p). In this case p and q are given, and r, s, stride and pad have no meaning. Otherwise p and q
/// follow from the other sizes.
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

enum class EltwiseKind : std::uint8_t { kActivation, kAdd, kMul, kSub };

/// An elementwise operation. For kActivation, `epilogue` holds the one activation. The other kinds
/// have two inputs of one shape; kSub subtracts the second. With `channelwise`, which kSub does not
/// have, the second is [n, c, 1, 1]. Their `epilogue` may hold an activation.
struct EltwiseProblem {
  EltwiseKind kind = EltwiseKind::kActivation;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  bool channelwise = false;
  Epilogue epilogue;
  bool operator==(const EltwiseProblem&) const = default;
};

/// A scale and a shift per channel, y = x * scale[c] + shift[c]: a batch norm in eval mode that no
/// convolution could absorb.
struct ScaleShiftProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  Epilogue epilogue;
  bool operator==(const ScaleShiftProblem&) const = default;
};

/// Names the kinds of norms over channels. The comments say what a norm computes of the c channels
/// x of one pixel.
enum class LayerNormKind {
  kLayer,     // (x - mean) / sqrt(variance + epsilon)
  kRms,       // x / sqrt(mean of x^2 + epsilon), an RMS norm
  kVariance,  // x / sqrt(sample variance + epsilon), whose sum is divided by c - 1
};

/// A norm over the channels of each pixel, y = norm(x) * scale[c] + shift[c].
struct LayerNormProblem {
  LayerNormKind kind = LayerNormKind::kLayer;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  double epsilon = 1e-5;  // from 0 to 1
  bool operator==(const LayerNormProblem&) const = default;
};

/// A group norm, y = (x - mean) / sqrt(variance + epsilon) * scale[c] + shift[c]. The mean and the
/// variance are those of the c / groups channels of a group, over all pixels of one image. An
/// instance norm is a group norm with groups = c.
struct GroupNormProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  std::int64_t groups = 1;
  double epsilon = 1e-5;  // from 0 to 1
  Epilogue epilogue;
  bool operator==(const GroupNormProblem&) const = default;
};

/// The steps of a batch norm in train mode, which normalizes each channel with the moments of the
/// batch. Each step is an operation of its own, so that its result may lie in any layout.
///   kMoments          x -> [2, c, 1, 1]: the mean of each channel, then its variance, the sum of
///                     the squared differences divided by n h w
///   kNormalize        x, moments -> (x - mean) / sqrt(variance + epsilon) * scale[c] + shift[c]
///   kGradientSums     diff_dst, x, moments -> [2, c, 1, 1]: the gradient of the shift, then that
///   of
///                     the scale
///   kGradient         diff_dst, x, moments, gradient sums -> the gradient of x
enum class BatchNormStep : std::uint8_t { kMoments, kNormalize, kGradientSums, kGradient };

/// A step of a batch norm of a tensor [n, c, h, w]. Only kNormalize has an epilogue. kMoments does
/// not use `epsilon`. kGradientSums and kGradient may have the activation that follows the batch
/// norm. Then they read the gradient of the activation's result. They compute the activation's
/// input again from x, so that it need not be kept, and multiply by the derivative there. Source of
/// the formulas: Ioffe & Szegedy 2015, arXiv:1502.03167.
struct BatchNormProblem {
  BatchNormStep step = BatchNormStep::kMoments;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  double epsilon = 1e-5;  // from 0 to 1
  Epilogue epilogue;
  std::optional<PostOp> activation;
  bool operator==(const BatchNormProblem&) const = default;
};

/// The gradient of an activation: diff_dst, x -> diff_dst * activation'(x). The result of a ReLU, a
/// ReLU6 or a clamp may stand for x, since it has the same gradient.
struct ActivationGradientProblem {
  PostOp activation;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  bool operator==(const ActivationGradientProblem&) const = default;
};

/// The gradient of a pooling with respect to its input. It reads diff_dst, and for a maximum also
/// the pooling's input. The first largest element of a window gets the gradient of its maximum.
struct PoolGradientProblem {
  PoolProblem pool;
  bool operator==(const PoolGradientProblem&) const = default;
};

/// The sums of each channel over n, h and w, [1, c, 1, 1]: the gradient of a convolution's bias. If
/// `per_image` is true, the sums are over h and w, [n, c, 1, 1]. If `has_product` is true, there is
/// a second input of the same sizes, and the terms are the products of both. Together they are the
/// gradient of a scale per channel of each image.
struct ChannelSumsProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  bool per_image = false, has_product = false;
  bool operator==(const ChannelSumsProblem&) const = default;
};

/// A concatenation of tensors [n, c[i], h, w] along the channels. If `groups` is above 1, the
/// result is then shuffled as by a ShuffleProblem of `groups`.
struct ConcatProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, h = 1, w = 1;
  std::vector<std::int64_t> c;
  std::int64_t groups = 1;
  bool operator==(const ConcatProblem&) const = default;
};

/// A slice of k channels from `begin` on of a tensor [n, c, h, w]: a part of a split, chunk or
/// narrow.
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

/// A pixel shuffle, [n, c, h, w] to [n, c / factor^2, h * factor, w * factor]. Element (y * factor
/// + i, x * factor + j) of channel k of the result is element (y, x) of channel (k * factor + i) *
/// factor + j. Source: Shi et al., "Real-Time Single Image and Video Super-Resolution Using an
/// Efficient Sub-Pixel Convolutional Neural Network", CVPR 2016, doi:10.1109/CVPR.2016.207.
struct PixelShuffleProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 4, h = 1, w = 1;
  std::int64_t factor = 2;  // from 2 on
  bool operator==(const PixelShuffleProblem&) const = default;
};

enum class ResizeKind : std::uint8_t { kNearest, kBilinear };

/// Up- or down-sampling to [n, c, p, q]. Only kBilinear uses `align_corners`. If the input size
/// changes, p and q stay the same. If both scale factors are above 0, the factors stay the same
/// instead: p = h * scale_h, q = w * scale_w.
struct ResizeProblem {
  ResizeKind kind = ResizeKind::kNearest;
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, h = 1, w = 1, p = 1, q = 1;
  std::int64_t scale_h = 0, scale_w = 0;
  bool align_corners = false;
  bool operator==(const ResizeProblem&) const = default;
};

/// A linear layer: dst [n, k] = src [n, c] * weights [k, c]^T.
struct LinearProblem {
  DType dtype = DType::kF32;
  std::int64_t n = 1, c = 1, k = 1;
  Epilogue epilogue;
  bool operator==(const LinearProblem&) const = default;
};

enum class AttentionKind : std::uint8_t { kSoftmax, kLinear };

/// Attention of each head. The inputs are queries [n, heads, queries, depth], keys [n, heads, keys,
/// depth], values [n, heads, keys, width] and the bias, if there is one. The result is [n, heads,
/// queries, width]. If `heads` is 0, the tensors lack this dimension.
///   kSoftmax  softmax(scale * queries * keys^T + bias) * values, with the softmax of each row
///   kLinear   q * (k^T * values) / (q * (k^T * 1) + epsilon), where q = relu(queries), k =
///             relu(keys), and 1 is a column of ones. Source: Cai et al., "EfficientViT", ICCV
///             2023.
/// Its only layout is nchw. There it stands for any strides, since the inputs are views as a rule.
struct AttentionProblem {
  AttentionKind kind = AttentionKind::kSoftmax;
  DType dtype = DType::kF32;
  std::int64_t n = 1, heads = 0, queries = 1, keys = 1, depth = 1, width = 1;
  std::vector<std::int64_t> bias;  // kSoftmax only: sizes that broadcast to [.., queries, keys]
  std::optional<double> scale;     // kSoftmax only; nullopt: 1 / sqrt(depth)
  double epsilon = 0;              // kLinear only; from 0 to 1
  bool operator==(const AttentionProblem&) const = default;
};

/// Returns the factor of the products of queries and keys.
[[nodiscard]] double scale_of(const AttentionProblem& attention);

/// Returns true if the bias broadcasts to [n, heads, queries, keys], or if there is none.
[[nodiscard]] bool can_broadcast_bias(const AttentionProblem& attention);

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
/// list. Then the compiler reports that its text and the profiler's reference are missing.
/// docs/adding-an-algorithm.md says which other functions have a default.
using Problem =
    std::variant<ConvProblem, PoolProblem, EltwiseProblem, ScaleShiftProblem, LayerNormProblem,
                 GroupNormProblem, ConcatProblem, SliceProblem, ShuffleProblem, PixelShuffleProblem,
                 ResizeProblem, LinearProblem, TransformProblem, BatchNormProblem,
                 ActivationGradientProblem, PoolGradientProblem, ChannelSumsProblem,
                 AttentionProblem, ConvChainProblem>;

/// A chain of operations in one call. Each layer reads the result of the layer before it, and
/// nothing else reads that tensor. The first layer may be a chain head (see is_chain_head). All
/// others are forward 2-D convolutions. A chain has two layers or more, and only the last one may
/// have "+add".
struct ConvChainProblem {
  std::vector<Problem> layers;
  bool operator==(const ConvChainProblem&) const = default;
};

[[nodiscard]] std::string_view to_string(DType dtype);
[[nodiscard]] std::string_view to_string(Direction direction);
[[nodiscard]] std::string_view to_string(PostOp::Kind kind);
[[nodiscard]] std::string_view to_string(LayerNormKind kind);  // "layer", "rms" or "variance"
/// Reads the text of to_string(LayerNormKind). Returns nullopt for any other text.
[[nodiscard]] std::optional<LayerNormKind> parse_layer_norm_kind(std::string_view text);

/// Returns the text of a post-op without the "+", as in "leaky_relu0.1".
[[nodiscard]] std::string to_string(const PostOp& op);

/// Returns the text of a problem, which is its only spelling: in cache keys, test ids, benchmark
/// rows and error texts. An example for a convolution is
/// `fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu`. docs/problems.md lists all
/// forms.
[[nodiscard]] std::string to_string(const Problem& problem);

/// Reads the text of a problem: parse_problem(to_string(p)) == p.
/// @throws Error  if `text` is not a problem or a size is out of range. The error names the text
/// and the position of the first mistake.
[[nodiscard]] Problem parse_problem(std::string_view text);

/// Returns the sizes [n, k, (p_d,) p, q] of the convolution's dst by the usual floor formula.
[[nodiscard]] std::vector<std::int64_t> conv_dst_sizes(const ConvProblem& conv);

/// Returns the logical sizes of the result: [n, c, h, w] ([n, c, d, h, w] if 3-D, [n, k] if
/// linear; see AttentionProblem).
[[nodiscard]] std::vector<std::int64_t> result_sizes(const Problem& problem);

/// Returns the logical sizes of the data inputs in call order, without weights. The residual of
/// "+add" is last.
[[nodiscard]] std::vector<std::vector<std::int64_t>> input_sizes(const Problem& problem);

/// Returns the same operation on inputs of other sizes.
/// @throws Error  if ranks or channels do not fit the operation.
[[nodiscard]] Problem with_input_sizes(const Problem& problem,
                                       const std::vector<std::vector<std::int64_t>>& sizes);

/// Returns the operations that the problem consists of, in order: the layers of a chain, and any
/// other problem itself. Each has the weights of at most one layer of the model.
[[nodiscard]] std::vector<Problem> layers_of(const Problem& problem);

/// Returns the sizes of the problem's weights as the model holds them, in kcrs: [k, c / groups,
/// (t,) r, s], [k, c] or [c]. Returns no sizes if the problem has no weights. A bias is not among
/// them.
/// @throws InternalError  for a chain, whose layers have their own.
[[nodiscard]] std::vector<std::int64_t> weight_sizes(const Problem& problem);

/// Returns the sizes of the problem's bias or shift as the model holds it, [k] or [c]. Returns no
/// sizes if the problem has neither. An operation with a scale (one weight per channel) always has
/// a shift.
/// @throws InternalError  for a chain, whose layers have their own.
[[nodiscard]] std::vector<std::int64_t> bias_sizes(const Problem& problem);

/// Returns true if the problem is an activation and nothing else.
[[nodiscard]] bool is_lone_activation(const Problem& problem);

/// Returns whether `problem` is a convolution or a chain of them.
[[nodiscard]] bool is_convolution(const Problem& problem);

/// Returns whether `problem` may be the first layer of a chain, in front of 1x1 convolutions. Such
/// layers are a scale-shift, a product per channel with a second input (each may be followed by an
/// activation), and a global average pooling.
[[nodiscard]] bool is_chain_head(const Problem& problem);

/// Returns the chain of `problem` and `next`. `problem` is a convolution, a chain or a chain head.
/// @throws InternalError  unless `next` can read the result of `problem`.
[[nodiscard]] ConvChainProblem with_next(const Problem& problem, const ConvProblem& next);

[[nodiscard]] DType dtype_of(const Problem& problem);

/// Returns the epilogue of the problem, or of the last layer of a chain. It is empty for kinds
/// without an epilogue.
[[nodiscard]] const Epilogue& epilogue_of(const Problem& problem);

/// Returns a copy with another epilogue. @throws InternalError  for a kind that has none.
[[nodiscard]] Problem with_epilogue(const Problem& problem, Epilogue epilogue);

[[nodiscard]] bool has(const Epilogue& epilogue, const PostOp& op);

/// Returns the epilogue as act(result + bias + residual), or nullopt if its order differs from
/// that.
[[nodiscard]] std::optional<BiasAddActivation> as_bias_add_activation(const Epilogue& epilogue);

}  // namespace torchalgo
