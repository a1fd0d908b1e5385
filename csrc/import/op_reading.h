// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "import/operands.h"
#include "ir/problem.h"
#include "torchscript/graph_view.h"

namespace torchalgo {

/// The operation of a TorchScript node in the types of csrc/ir.
struct OpReading {
  std::optional<Problem> problem;
  std::vector<script::Value> inputs;  // data inputs in the problem's order; empty if opaque
  std::string note;                   // why this op is not planned although its kind is
  /// Earlier nodes whose work the problem includes. Nothing else reads their results.
  std::vector<script::Node> inner = {};
};

/// Returns the reading of a node that computes `problem` of `inputs`.
[[nodiscard]] OpReading planned(Problem problem, std::vector<script::Value> inputs);

/// Returns the tensor that the op reads. Schemas have two names for it.
[[nodiscard]] script::Value data_input(const Operands& op);

/// Returns the description of an operand of rank 4. @throws NotPlanned  for any other rank.
[[nodiscard]] const TensorInfo& rank4(const Operands& op, script::Value value);

/// Returns the description of an operand of rank 4 or 3. @throws NotPlanned  for any other rank.
[[nodiscard]] const TensorInfo& rank4_or_3(const Operands& op, script::Value value);

/// Makes a problem with the type and the sizes of an operand of rank 4 or 3: [n, c, w] counts as h
/// = 1.
template <typename P>
[[nodiscard]] P with_src(const TensorInfo& src) {
  P problem;
  problem.dtype = *src.dtype;
  problem.n = src.sizes[0], problem.c = src.sizes[1];
  problem.w = src.sizes.back();
  if (src.sizes.size() == 4) problem.h = src.sizes[2];
  return problem;
}

}  // namespace torchalgo
