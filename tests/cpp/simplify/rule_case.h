// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "torchscript/tensor_info.h"

namespace torchalgo {

/// A graph of TorchScript with the arguments of a run.
struct Example {
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<c10::IValue> arguments;  // self first
};

/// A rule of csrc/simplify: it changes the graph of an example, whose run made the tensors `seen`.
using Rule = void (*)(Example& example, SeenTensors& seen);

/// Shows what one rule makes of a model, and where it does nothing.
struct RuleCase {
  const char* name;
  Rule rule;
  /// The body of forward(self, x), in Python. The frozen members of self are `v`, `u` [4], `m`
  /// [4, 4], the filters `k1`, `k2` [4, 4, 1, 1], `k3` [4, 4, 3, 3], `d3` [4, 1, 3, 3], and `zero`,
  /// an integer.
  const char* forward;
  /// The ops after the rule, in order and without constants and lists. Null: the rule does nothing.
  const char* becomes;
  /// Names of tensors of `forward`. If one of them is written in place, the rule does nothing.
  std::vector<std::string> unwritten = {};
  /// A size of 4 counts as a number of channels, which weights fix.
  std::vector<std::int64_t> x = {2, 4, 6, 5};
};
inline void PrintTo(const RuleCase& rule_case, std::ostream* out) { *out << rule_case.name; }

/// Checks that the rule does what the case says, and that the graph computes the same afterwards:
/// also for inputs of other sizes, and if any tensor is written in place, anywhere behind the node
/// that makes it. Checks that simplify() leaves nothing to the rule.
void check(const RuleCase& rule_case);

}  // namespace torchalgo
