// SPDX-License-Identifier: BSD-3-Clause
#include "runner/module_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "runner/graph_runner.h"

namespace torchalgo {

// A file that chooses by sizes has one submodule per plan. Its method `nearest` returns which one
// runs, or -1 if none is right for the sizes (python/torchalgo/_run/shape_dispatch.py).
ModuleRunner::ModuleRunner(torch::jit::Module module)
    : module_(std::move(module)), has_choice_(module_.find_method("nearest").has_value()) {
  const auto add = [this](const torch::jit::Module& plan) {
    runners_.push_back(GraphRunner::make(read_program(plan), {}));
  };
  if (!has_choice_) add(module_);
  for (int i = 0; module_.hasattr(fmt::format("plan_{}", i)); ++i)
    add(module_.attr(fmt::format("plan_{}", i)).toModule());
}

const GraphRunner* ModuleRunner::runner_for(const std::vector<c10::IValue>& inputs) const {
  if (!has_choice_) return runners_[0].get();
  const std::int64_t nearest = module_.get_method("nearest")(inputs).toInt();
  const bool is_known = nearest >= 0 && nearest < static_cast<std::int64_t>(runners_.size());
  return is_known ? runners_[nearest].get() : nullptr;
}

c10::IValue ModuleRunner::forward(std::vector<c10::IValue> inputs) const {
  const bool takes_tensors = std::all_of(inputs.begin(), inputs.end(),
                                         [](const c10::IValue& input) { return input.isTensor(); });
  if (const GraphRunner* const runner = takes_tensors ? runner_for(inputs) : nullptr) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& input : inputs) tensors.push_back(input.toTensor());
    if (auto result = runner->run(std::move(tensors))) return std::move(*result);
  }
  torch::jit::Module module = module_;  // Module::forward is not const; the copy shares everything
  return module.forward(std::move(inputs));
}

}  // namespace torchalgo
