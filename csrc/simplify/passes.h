// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

// The passes of simplify(). Each changes the graph so that it computes the same for all inputs of
// the same ranks, and returns true if it did. `seen` has the tensors that a run of the graph makes.
// It does not describe the new graph, except where simplify.cpp says so.

namespace torchalgo {

/// Replaces in-place ops by their functional twins where nobody outside the graph can see the
/// change: `x.add_(y)` becomes `add(x, y)`, and what reads x later reads the sum. Views of x and
/// lists that hold it are made again if they are read after the change.
///
/// A tensor stays as it is in these cases: it may be an input or a weight, a branch or a loop reads
/// it, it is written through a view and then read as a whole, or what is read after the change may
/// be its memory or a copy, as the result of reshape.
///
/// Torch's own pass, RemoveTensorMutation, gives up as soon as a list holds the tensor.
bool functionalize(const script::Graph& graph, const SeenTensors& seen);

/// Keeps a pooled tensor [n, c, 1, 1] in this shape where a model makes a matrix [n, c] of it for
/// linear layers and activations, and then brings it back, as squeeze-and-excitation blocks do:
///
///   y = self.pool(x).view(b, c)
///   y = self.fc(y).view(b, c, 1, 1)
///   return x * y.expand_as(x)
///
/// The linear layers become 1x1 convolutions, and `expand_as` is removed if only products with `x`
/// read it. Sums and products of such matrices keep this shape, too. Views of such a tensor that
/// change nothing are removed.
bool keep_pooled_vectors(const script::Graph& graph, const SeenTensors& seen);

/// Replaces means over the pixels of images, such as x.mean((2, 3)) and x.flatten(2).mean(2), by
/// poolings to [n, c, 1, 1], which import_graph reads, and views.
bool flatten_means(const script::Graph& graph, const SeenTensors& seen);

/// Replaces activations that a model writes down itself by the op of that name, which import_graph
/// can read: x * sigmoid(x) is silu, x * tanh(softplus(x)) is mish, relu6(x + 3) / 6 is
/// hardsigmoid, x * hardsigmoid(x) is hardswish, and 0.5 * x * (1 + erf(x / sqrt(2))) is gelu. The
/// steps between must have no other reader.
bool name_written_activations(const script::Graph& graph, const SeenTensors& seen);

/// Takes stacks of images apart, so that import_graph sees operations on the images themselves:
/// - A sum, a select or an unbind along the dimension of a stack reads the images. A stack is made
///   by aten::stack, or by a view of [n, c, h, w] as [n, parts, c / parts, h, w].
/// - A product of two stacks is one product per image.
/// - A softmax over two images whose logits come from 1x1 convolutions is the sigmoid of one
///   convolution, whose weights are the differences.
/// - Vectors [n, c], as in the attention of such networks, stay images [n, c, 1, 1] throughout.
///   Linear layers on them become 1x1 convolutions if the result becomes an image again.
bool take_stacks_apart(const script::Graph& graph, const SeenTensors& seen);

/// Makes one op, torchalgo::attention, of matmul, scale, sum, softmax and matmul, as attention is
/// written down, and of scaled_dot_product_attention with a constant mask or none, in f32 on the
/// CPU. The scale may multiply the scores, the queries or the keys. Tensors have rank 3 or 4. The
/// softmax is over the keys, and nothing else reads what lies between. The ops of attention without
/// softmax, as EfficientViT has it, become torchalgo::linear_attention.
bool fuse_attention(const script::Graph& graph, const SeenTensors& seen);

/// Removes ops that return their input, if nobody writes to it:
/// - contiguous() between ops whose results do not depend on strides;
/// - the sum with the number 0, as in Python's sum([a, b]);
/// - casts of floating-point tensors to the type that they have.
bool remove_identities(const script::Graph& graph, const SeenTensors& seen);

/// Makes zeros around an image a part of the padding of its readers, if these are 2-D convolutions
/// and there are as many zeros before the image as after it.
bool fold_pads(const script::Graph& graph);

/// Gives group norms and instance norms of images the form that import_graph reads:
/// - An instance norm that uses the statistics of its input becomes an aten::group_norm with one
///   group per channel.
/// - An instance norm that uses running statistics becomes an aten::batch_norm in eval mode.
/// - A group norm without a weight or a bias gets ones or zeros, where weights fix the number of
///   channels.
///
/// Adds the new tensors to `seen`.
bool complete_norms(const script::Graph& graph, SeenTensors& seen);

/// Replaces the batch norm of tokens [n, t, c], which models write as
/// bn(x.flatten(0, 1)).reshape_as(x), by a product and a sum with one constant per channel.
bool name_token_norms(const script::Graph& graph, const SeenTensors& seen);

/// Replaces norms over channels that a model writes down itself by torchalgo::channel_norm, which
/// import_graph can read:
/// - the layer norm (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps);
/// - the RMS norm x / sqrt(mean(x^2) + eps);
/// - the variance norm x / sqrt(var(x) + eps), where x keeps its mean.
///
/// The channels are dimension 1 or the last one. A product with one constant per channel, and a sum
/// with one, become part of the norm.
bool name_written_norms(const script::Graph& graph, const SeenTensors& seen);

/// Moves the channels of images and tokens to dimension 1 where a network has them last.
///
/// Networks such as ConvNeXt and MambaOut permute [n, c, h, w] to [n, h, w, c], apply layer norms,
/// linear layers, activations, splits and sums, and permute back. Such a part of the network is
/// computed without the permutes if it has a linear layer, which becomes a 1x1 convolution, or ends
/// with a permute back. The permutes around a layer norm stay: see read_layer_norm.
///
/// Transformers do the same with tokens [n, t, c]. These are computed as images [n, c, 1, t], which
/// have the same memory in nhwc. Where other ops read or make tokens, views lead from one form to
/// the other. Tokens that the model makes of an image by flatten(2).transpose(1, 2), and images
/// that it makes of tokens by transpose(1, 2).reshape(...), need no copy either if the image is in
/// nhwc.
bool move_channels_first(const script::Graph& graph, const SeenTensors& seen);

/// Handles products and sums of a tensor with constants: a batch norm in eval mode, a learned scale
/// or gamma, a number, the normalization of an input. Each of them is y = x * scale[c] + shift[c].
/// - If x is the result of a convolution, or of a linear layer of a matrix, and nothing else reads
///   it, the layer's weights and bias compute y.
/// - If only such layers read y, their weights take the scale. Their biases take the shift, unless
///   they pad: the padding stays 0.
/// - A difference in which large terms cancel stays as it is, such as the first op of
///   (x - 101325) / 10. A chain of ops begins anew behind it.
/// - All that is left of images becomes one aten::batch_norm per chain of such ops, which
///   import_graph reads as a ScaleShiftProblem. Numbers alone do so only where weights fix the
///   channels.
///
/// Constants are combined in double precision.
bool fold_affine(const script::Graph& graph, const SeenTensors& seen);

/// Makes one convolution of a sum or difference of convolutions that read the same tensor, as
/// RepVGG, MobileOne and their relatives are trained: 3x3 + 1x1 + batch norm. The convolutions must
/// have the same stride and groups and no dilation, and their filters must have a common centre.
/// The tensor itself, or a batch norm of it, counts as a convolution with a 1x1 filter. The result
/// has the filter of the largest one, so it computes as much as this one did alone. Two linear
/// layers of one tensor, as in the heads of distilled networks, become one.
///
/// Weights are added in double precision.
bool merge_branches(const script::Graph& graph, const SeenTensors& seen);

/// Gives each reader of an image with zeros around it a copy of the node that makes the zeros, if
/// all readers are 2-D convolutions. The importer joins a convolution with zeros that nothing else
/// reads.
bool copy_pads(const script::Graph& graph);

/// Replaces the ways in which models write operations on channels by ops that import_graph can
/// read:
/// - view, transpose, view becomes channel_shuffle; view, permute, view becomes pixel_shuffle.
/// - The parts of a chunk or split become narrows. The number of channels is read from `seen`.
/// - A cat of all parts of a tensor becomes that tensor.
/// - A slice that takes everything is removed.
bool simplify_channel_ops(const script::Graph& graph, const SeenTensors& seen);

}  // namespace torchalgo
