// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/problem.h"
#include "torchscript/graph_view.h"

namespace torchalgo {

/// A tensor as it was seen in a run.
struct SeenTensor {
  std::vector<std::int64_t> sizes;
  at::ScalarType scalar_type = at::kFloat;
  at::Device device = at::kCPU;
  bool is_strided = true;
  bool is_always_so = true;  // false: seen with several sizes, as inside a loop
};
using SeenTensors = std::unordered_map<script::Value, SeenTensor>;

/// Returns the tensors that a run of `graph` on `arguments` (self first) makes, in all of its
/// blocks. The interpreter runs an instrumented copy, so that TorchScript's executor makes no plan
/// for `graph`. Tensor arguments are cloned.
/// @throws Error  if the run fails, with the text of cause_of().
[[nodiscard]] SeenTensors see_tensors(const script::Graph& graph,
                                      const std::vector<c10::IValue>& arguments);

/// Returns the rank of a tensor, or nullopt if it was not seen or had several sizes.
[[nodiscard]] std::optional<std::int64_t> rank_of(script::Value tensor, const SeenTensors& seen);

/// Returns which block each branch of the outermost block takes in a run of `graph` on `arguments`:
/// true is the first one. The run is as in see_tensors.
[[nodiscard]] std::unordered_map<script::Node, bool> see_branches(
    const script::Graph& graph, const std::vector<c10::IValue>& arguments);

/// Returns the message of an error of torch, without the backtraces around it.
[[nodiscard]] std::string cause_of(const std::exception& error);

/// The description of a tensor for import_graph.
struct TensorInfo {
  std::vector<std::int64_t> sizes;  // empty if it was not seen, or a scalar
  std::optional<DType> dtype;       // nullopt: not floating point, or not seen
  std::string obstacle;             // why no op on it may be planned, or empty
};
using TensorInfos = std::unordered_map<script::Value, TensorInfo>;

/// Describes a tensor.
/// @param seen  null if the run did not make the tensor.
[[nodiscard]] TensorInfo describe(const SeenTensor* seen);

/// Returns the DType of torch's `type`, or nullopt if it is not floating point.
[[nodiscard]] std::optional<DType> dtype_of_scalar(at::ScalarType type);

}  // namespace torchalgo
