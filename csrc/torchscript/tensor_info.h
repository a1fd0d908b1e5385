// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/problem.h"

namespace torchalgo {

/// A tensor as a run met it.
struct SeenTensor {
  std::vector<std::int64_t> sizes;
  at::ScalarType scalar_type = at::kFloat;
  at::Device device = at::kCPU;
  bool is_strided = true;
  bool is_always_so = true;  // a value inside a loop may be met with several sizes
};
using SeenTensors = std::unordered_map<const torch::jit::Value*, SeenTensor>;

/// The tensors that a run of `graph` on `arguments` (self first) makes, in all of its blocks. Runs
/// an instrumented copy in the interpreter, so the executor makes no plan for `graph`; tensor
/// arguments are cloned.
/// @throws Error  with the text of what went wrong in the run.
[[nodiscard]] SeenTensors see_tensors(const std::shared_ptr<torch::jit::Graph>& graph,
                                      const std::vector<c10::IValue>& arguments);

/// What went wrong in torch, without the backtraces around it.
[[nodiscard]] std::string cause_of(const std::exception& error);

/// What import needs to know of a tensor.
struct TensorInfo {
  std::vector<std::int64_t> sizes;  // empty if it was not seen, or a scalar
  std::optional<DType> dtype;       // nothing: not floating point, or not seen
  std::string obstacle;             // why no op on it may be planned; empty: it may
};
using TensorInfos = std::unordered_map<const torch::jit::Value*, TensorInfo>;

/// @param seen  null: the run did not make it.
[[nodiscard]] TensorInfo describe(const SeenTensor* seen);

/// torch's name for it, as this project spells it; nothing if it is not floating point.
[[nodiscard]] std::optional<DType> dtype_of_scalar(at::ScalarType type);

}  // namespace torchalgo
