// SPDX-License-Identifier: BSD-3-Clause
#include "import/op_reading.h"

#include <fmt/format.h>

#include <utility>

namespace torchalgo {

OpReading planned(Problem problem, std::vector<script::Value> inputs) {
  return {std::move(problem), std::move(inputs), {}};
}

script::Value data_input(const Operands& op) {
  return op.value(op.has("input") ? "input" : "self");
}

const TensorInfo& rank4(const Operands& op, script::Value value) {
  const TensorInfo& info = op.tensor(value);
  if (info.sizes.size() != 4) throw NotPlanned(fmt::format("its rank is {}", info.sizes.size()));
  return info;
}

const TensorInfo& rank4_or_3(const Operands& op, script::Value value) {
  const TensorInfo& info = op.tensor(value);
  return info.sizes.size() == 3 ? info : rank4(op, value);
}

}  // namespace torchalgo
