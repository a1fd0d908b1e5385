// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/api/module.h>

#include <memory>
#include <vector>

namespace torchalgo {

class GraphRunner;

/// Runs a file of an optimized model in C++ as Python does: without TorchScript's interpreter,
/// which takes about 5 us per op more. Several threads may use it at once.
///
///     const torchalgo::ModuleRunner model(torch::jit::load("model.pt"));
///     const at::Tensor y = model.forward({x}).toTensor();
class ModuleRunner {
 public:
  /// Takes any module. The runner shares its weights.
  explicit ModuleRunner(torch::jit::Module module);

  /// Returns module.forward(inputs). Runs the interpreter if the module or the call needs it, for
  /// example if an argument is no tensor, on a GPU, or with a profiler.
  /// @throws std::exception  as module.forward does.
  [[nodiscard]] c10::IValue forward(std::vector<c10::IValue> inputs) const;

 private:
  [[nodiscard]] const GraphRunner* runner_for(const std::vector<c10::IValue>& inputs) const;

  torch::jit::Module module_;
  bool has_choice_;  // a method chooses the plan by the inputs' sizes
  // One per plan; null if the interpreter must run it.
  std::vector<std::shared_ptr<const GraphRunner>> runners_;
};

}  // namespace torchalgo
