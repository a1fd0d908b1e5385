// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "ir/graph.h"

namespace torchalgo {

/// The data flow of one training step: `inference`, then its gradients from the outputs back. It is
/// a Graph like any other, so one plan chooses forward, backward-data and backward-filter of every
/// convolution together: a layout of an activation that was made for the forward pass is free for
/// the weights' gradient, and both gradients share the layouts of diff_dst.
///
/// Per node, in reverse order; a node named "<node>.bwd_..." each:
///   convolution    bwd_data (if the input needs a gradient) and bwd_filter, which reads src in the
///                  primitive's src and diff_dst in its dst; its result is read by nobody, and its
///                  layout is in the primitive's name
///   activation     reads the saved result (ReLU) or the saved input
///   addition       none: both inputs share the gradient
///   concatenation  one node with a result per input, all slices of one layout
///   opaque         opaque
/// Gradients of a value that is read more than once are added two at a time. Nouns that problems
/// lack (backward of pooling, of a resize, of a scale and shift, slices) are planned as elementwise
/// problems on the tensor that they write, which have their layouts and their bytes.
///
/// @return  inputs: those of `inference`, then "<output>.grad" in nchw; outputs: likewise the same,
/// then the weights' gradients. Inputs of `inference` need no gradient.
[[nodiscard]] Graph training_graph(const Graph& inference);

}  // namespace torchalgo
