// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <memory>
#include <vector>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Brings `graph`, which must not have run, into the form that import_graph reads. For inputs of
/// the same ranks it computes the same function as before:
/// - Calls are inlined.
/// - In-place ops and growing lists become functional ops if no other code sees the change.
/// - Branches on a tensor's rank and loops of a small fixed count are resolved, and branches on
///   sizes, too. A call that would take another branch fails (size_branches.h).
/// - Pooled tensors keep rank 4 in squeeze-and-excitation blocks (pooled_vectors.h).
/// - Activations that the model writes down get their names (written_activations.h), and norms over
///   channels, too (written_norms.h).
/// - Attention becomes one op (attention.h).
/// - Stacks of images are taken apart (stacks.h), and ops that return their input are removed.
/// - Zeros around the input of a convolution join its padding (fold_pads.h).
/// - Parts with their channels last get them first (channels_first.h): images, and tokens, whose
///   batch norms become products and sums before (token_norms.h).
/// - Products and sums with constants go into convolutions (fold_affine.h), and convolutions of one
///   tensor whose sum is taken become one (merge_branches.h).
/// - Shuffled and split channels become ops of their own (channel_ops.h).
///
/// @param arguments  of forward, self first.
/// @return  the tensors that a run of the new graph on `arguments` makes.
[[nodiscard]] SeenTensors simplify(std::shared_ptr<torch::jit::Graph>& graph,
                                   const std::vector<c10::IValue>& arguments);

}  // namespace torchalgo
