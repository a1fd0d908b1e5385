// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace torchalgo {

struct GraphSteps;

/// The sizes and type of an input tensor for which a plan was made.
struct PlannedInput {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
};

/// Runs the forward of an optimized module op by op, without TorchScript's interpreter, and without
/// torch's dispatcher for planned ops. Each kernel evicts their code from the caches, so that it is
/// fetched again at each op. This takes about 5 us per op, and four times as much if other
/// processes use the last-level cache.
///
/// While ops are timed (ops/op_times.h), the ops that are left to PyTorch are timed, too.
///
/// Results, counters, memory and the errors of planned ops are those of the module. The runner
/// shares the module's weights. Several threads may use it at once.
class GraphRunner {
 public:
  /// Returns a runner for the module's forward. Returns null if forward takes anything but tensors,
  /// has no planned op or has several results. It also returns null if forward is more than a
  /// sequence of ops: if it branches, loops, makes dictionaries or prints, or if weights need a
  /// gradient.
  [[nodiscard]] static std::shared_ptr<const GraphRunner> make(const torch::jit::Module& module,
                                                               std::vector<PlannedInput> planned);

  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;
  ~GraphRunner();

  /// Returns forward(inputs). Returns nullopt, without side effects, if the module needs
  /// TorchScript's interpreter. This is the case if an input is not a plain CPU tensor or needs a
  /// gradient, or if the number of inputs differs. It is also the case with a profiler, autocast,
  /// vmap, or another mode of torch that sees each op.
  /// @throws Error  from planned ops. Other ops throw torch's errors, without a position in the
  /// code.
  [[nodiscard]] std::optional<c10::IValue> run(std::vector<at::Tensor> inputs) const;

  /// Runs forward as run() does. Returns nullopt also if sizes or types of the inputs are not those
  /// of the plan.
  [[nodiscard]] std::optional<c10::IValue> run_planned(std::vector<at::Tensor> inputs) const;

 private:
  GraphRunner(std::unique_ptr<const GraphSteps> steps, std::vector<PlannedInput> planned);

  std::unique_ptr<const GraphSteps> steps_;
  std::vector<PlannedInput> planned_;
};

}  // namespace torchalgo
