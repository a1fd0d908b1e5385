// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// y = src * scale[c] + shift[c], for the channels c of dimension 1.
struct Affine {
  script::Value src;
  at::Tensor scale, shift;  // [c], f64
  bool is_per_channel;      // the constants have one number per channel, so c never changes
  /// How many times larger than the result a term of the sum may be. Subtracting first and scaling
  /// then is exact where these terms nearly cancel. 0 if there is no shift.
  double cancellation;
};

/// Returns last(first(x)).
[[nodiscard]] Affine compose(const Affine& last, const Affine& first);

/// Returns the affine function that `node` computes, or nullopt if it computes another one: it is a
/// batch norm in eval mode, or adds, subtracts, multiplies or divides by a constant that has one
/// number, or one per channel. Tensors have rank 2 or more: [n, c, ...].
[[nodiscard]] std::optional<Affine> read_affine(script::Node node, const SeenTensors& seen);

}  // namespace torchalgo
