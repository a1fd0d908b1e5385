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

/// A tensor that a plan was made for.
struct PlannedInput {
  std::vector<std::int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
};

/// Runs the forward of an optimized module op by op, without TorchScript's interpreter and torch's
/// dispatcher. A kernel empties the caches, so that their code comes from far away again at each
/// op: some 5 us of it, and four times that where other processes use the last cache.
///
/// Results, counters and memory are those of the module, and so are the errors of planned ops. It
/// shares the module's weights, and may run in several threads at once.
class GraphRunner {
 public:
  /// Null where forward takes other than tensors, or is more than a row of ops of which some are
  /// planned: where it branches, loops, makes dictionaries or prints.
  [[nodiscard]] static std::shared_ptr<const GraphRunner> make(const torch::jit::Module& module,
                                                               std::vector<PlannedInput> planned);

  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;
  ~GraphRunner();

  /// forward(inputs). Nothing, with nothing done, where the interpreter must run: inputs that are
  /// no plain CPU tensors or need a gradient, another number of them; a profiler, autocast, vmap,
  /// or another mode of torch that looks at each op.
  /// @throws Error  of a planned op; what torch throws of its own ones, without a place in the
  /// code.
  [[nodiscard]] std::optional<c10::IValue> run(std::vector<at::Tensor> inputs) const;

  /// The same, nothing where sizes and types are not those of the plan.
  [[nodiscard]] std::optional<c10::IValue> run_planned(std::vector<at::Tensor> inputs) const;

 private:
  GraphRunner(std::unique_ptr<const GraphSteps> steps, std::vector<PlannedInput> planned);

  std::unique_ptr<const GraphSteps> steps_;
  std::vector<PlannedInput> planned_;
};

}  // namespace torchalgo
