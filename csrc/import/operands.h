// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "ir/problem.h"
#include "torchscript/graph_view.h"
#include "torchscript/tensor_info.h"

namespace torchalgo {

/// The reason why a node cannot be planned. read_op catches it, so it is an answer and not an
/// error.
struct NotPlanned : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The arguments of a node by their names in the op's schema. Every accessor throws NotPlanned if
/// the argument has another type or is not a constant.
class Operands {
 public:
  Operands(script::Node node, const TensorInfos& infos) : node_(node), infos_(infos) {}

  [[nodiscard]] script::Node node() const { return node_; }
  /// Returns the operands of another node of the same graph.
  [[nodiscard]] Operands of(script::Node node) const { return {node, infos_}; }
  [[nodiscard]] bool has(const char* name) const { return node_.has_argument(name); }
  [[nodiscard]] script::Value value(const char* name) const;
  [[nodiscard]] bool is_none(const char* name) const;
  [[nodiscard]] bool boolean(const char* name) const;
  [[nodiscard]] double number(const char* name) const;
  [[nodiscard]] std::vector<double> floats(const char* name) const;
  [[nodiscard]] std::vector<std::int64_t> ints(const char* name) const;
  /// Returns `count` numbers; a single number stands for all of them. @throws NotPlanned  if the
  /// list has another length.
  [[nodiscard]] std::vector<std::int64_t> ints(const char* name, std::size_t count) const;
  [[nodiscard]] at::Tensor constant(const char* name, DType dtype) const;

  /// Returns a tensor of the data flow that may be planned: it is floating point and dense, has a
  /// known shape, and is never written to.
  [[nodiscard]] const TensorInfo& tensor(script::Value value) const;
  /// Returns false if tensor(value) would throw.
  [[nodiscard]] bool is_plannable(script::Value value) const;
  [[nodiscard]] const TensorInfo& result() const { return tensor(node_.output()); }

 private:
  script::Node node_;
  const TensorInfos& infos_;
};

}  // namespace torchalgo
