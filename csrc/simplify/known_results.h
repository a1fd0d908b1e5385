// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>

#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// Returns what the node computes in every run, if this follows from ranks and channels:
/// - the rank of a tensor, or the length of a list of its sizes: a number;
/// - whether a product of sizes equals a number: false if a factor of the product does not divide
///   the number. The group norm of torch.nn.functional compares n * (c / groups) * h * w with 1;
/// - whether channels that weights fix have a given number.
///
/// Returns nullopt for other nodes.
[[nodiscard]] std::optional<c10::IValue> known_result(script::Node node, const SeenTensors& seen);

}  // namespace torchalgo
