// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runner/program.h"

namespace torchalgo {

struct Instructions;

/// The sizes and type of an input tensor for which a plan was made.
struct PlannedInput {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;  // for run_planned() only
};

/// The times of ops in ns, with the positions of their nodes in the graph of forward.
using OpTimes = std::vector<std::pair<int, std::int64_t>>;

/// Runs the forward of an optimized module op by op, without TorchScript's interpreter, and without
/// torch's dispatcher for planned ops. Each kernel evicts their code from the caches, so that it is
/// fetched again at each op. This takes about 5 us per op, and four times as much if other
/// processes use the last-level cache.
///
/// Results, counters, memory and the errors of planned ops are those of the module. The runner
/// shares the module's weights. Several threads may use it at once.
class GraphRunner {
 public:
  /// Returns a runner of a program. Returns null if there is no program, or if weights need a
  /// gradient. If `needs_planned` is set, it also returns null if the program has no planned op.
  /// @throws Error  if this PyTorch lacks an op of the program.
  [[nodiscard]] static std::shared_ptr<const GraphRunner> make(
      std::unique_ptr<const Program> program, std::vector<PlannedInput> planned,
      bool needs_planned = true);

  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;
  ~GraphRunner();

  /// Returns forward(inputs). Returns nullopt, without side effects, if the module needs
  /// TorchScript's interpreter. This is the case if an input is not a plain tensor of a CPU or a
  /// GPU or needs a gradient, or if the number of inputs differs. It is also the case with a
  /// profiler, autocast, vmap, or another mode of torch that sees each op.
  /// @throws Error  from planned ops. Other ops throw torch's errors, without a position in the
  /// code.
  [[nodiscard]] std::optional<c10::IValue> run(std::vector<at::Tensor> inputs) const;

  /// Runs forward as run() does, and returns the times of the ops that are left to PyTorch, in the
  /// order in which they ran. Returns nullopt also for inputs on a GPU, where an op goes on after
  /// its call.
  [[nodiscard]] std::optional<OpTimes> time_left_ops(std::vector<at::Tensor> inputs) const;

  /// Runs forward as run() does. Returns nullopt also if sizes, types or devices of the inputs are
  /// not those of the plan.
  [[nodiscard]] std::optional<c10::IValue> run_planned(std::vector<at::Tensor> inputs) const;

  /// Runs forward in any state of torch, and on any device on which its planned ops run, with the
  /// meta device. A profiler sees kernels instead of planned ops.
  /// @param constants  those of the program, or others of the same types.
  [[nodiscard]] c10::IValue run_anywhere(std::vector<at::Tensor> inputs,
                                         const std::vector<c10::IValue>& constants) const;

  [[nodiscard]] const Program& program() const { return *program_; }
  [[nodiscard]] const std::vector<PlannedInput>& planned() const { return planned_; }

 private:
  GraphRunner(std::unique_ptr<const Program> program, std::vector<PlannedInput> planned);

  /// Runs forward, see run(). Appends to `times`, unless it is null, see time_left_ops().
  [[nodiscard]] std::optional<c10::IValue> run_plain(std::vector<at::Tensor> inputs,
                                                     OpTimes* times) const;

  std::unique_ptr<const Program> program_;
  std::vector<PlannedInput> planned_;
  std::unique_ptr<const Instructions> instructions_;
};

}  // namespace torchalgo
