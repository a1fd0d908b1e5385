// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "ir/graph.h"

namespace torchalgo {

/// Returns the data flow of one training step: `inference`, then its gradients from the outputs
/// back. One plan chooses forward, backward-data and backward-filter of every convolution together.
/// So the weights' gradient can read an activation in a layout that was made for the forward pass,
/// and both gradients share the layouts of diff_dst.
///
/// Each node of `inference`, in reverse order, adds nodes named "<node>.bwd_...":
///   convolution    bwd_data (if the input needs a gradient) and bwd_filter, which reads src in the
///                  primitive's src and diff_dst in its dst; no node reads its result, and its
///                  layout is in the primitive's name. With a bias also bwd_bias
///   batch norm     bwd_sums, the gradients of shift and scale, and bwd. Both include the gradient
///   of
///                  a ReLU or another clamp that alone reads the result
///   activation     reads the saved result (ReLU and clamps) or the saved input. No call fuses an
///                  activation whose input is saved with the operation before it
///   addition       none: both inputs share the gradient. Numbers per channel, [n, c, 1, 1], get
///                  its sums over each image
///   product        the product with the other input. Numbers per channel get its sums over each
///                  image
///   concatenation  a slice for each input
///   slices         the concatenation of their gradients, if they cover all channels once
///   shuffle        the shuffle back
///   opaque         opaque, and so are attention and a pixel shuffle
/// The gradients of a value with several readers are added two at a time. Some gradients have no
/// problem of their own (resize, scale-shift, layer and group norm, other slices). They are planned
/// as elementwise problems on the tensor that they write, which have the same layouts and
/// bytes, and can not run.
///
/// @return  a graph whose inputs are those of `inference`, then "<output>.grad" in nchw, and whose
/// outputs are those of `inference`, then the weights' gradients, then those of `wanted`.
///
/// @param wanted  the values among the inputs of `inference` that get a gradient.
/// @param recomputed  some of recomputable_values(). Gradients do not read them. Nodes
/// "<node>.bwd_again" compute them again before the first gradient that needs them, so the forward
/// pass need not keep them.
/// @throws InternalError  if no output depends on a wanted input.
[[nodiscard]] Graph training_graph(const Graph& inference, const std::vector<int>& wanted = {},
                                   const std::vector<int>& recomputed = {});

/// Returns the values that are cheap to compute again: results of batch norms, with an activation
/// or without, that some gradient reads. Their inputs are kept in any case.
[[nodiscard]] std::vector<int> recomputable_values(const Graph& inference);

}  // namespace torchalgo
