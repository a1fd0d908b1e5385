// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/rule_case.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/freeze_module.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <sstream>

#include "simplify/simplify.h"
#include "torchscript/constants.h"

namespace torchalgo {
namespace {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using Sizes = std::vector<std::int64_t>;

// The body is indented by two spaces or more.
Example make_example(const char* forward, const Sizes& sizes) {
  torch::jit::Module module("Net");
  const auto add = [&](const char* name, const at::Tensor& tensor) {
    module.register_parameter(name, tensor, /*is_buffer=*/true);
  };
  add("v", at::rand({4}) + 0.5);
  add("u", at::rand({4}) + 0.5);
  add("m", at::randn({4, 4}));
  add("k1", at::randn({4, 4, 1, 1}));
  add("k2", at::randn({4, 4, 1, 1}));
  add("k3", at::randn({4, 4, 3, 3}));
  add("d3", at::randn({4, 1, 3, 3}));
  add("zero", at::zeros({}, at::kLong));  // tracing makes such tensors of numbers
  module.define(std::string("def forward(self, x):\n") + forward + "\n");
  const torch::jit::Module frozen = torch::jit::freeze_module(module);
  auto graph = frozen.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  torch::jit::ConstantPropagation(graph);
  torch::jit::EliminateDeadCode(graph);
  return {graph, {frozen._ivalue(), at::randn(sizes)}};
}

Example copy_of(const Example& example) { return {example.graph->copy(), example.arguments}; }

// Returns the graph with an input of another size and as many channels.
Example resized(const Example& example) {
  Sizes sizes = example.arguments[1].toTensor().sizes().vec();
  for (std::int64_t& size : sizes) size += size == 4 ? 0 : 1;
  return {example.graph, {example.arguments[0], at::randn(sizes)}};
}

bool is_container(const Node* node) {
  return is_kind(node, "prim::ListConstruct") || is_kind(node, "prim::TupleConstruct");
}

// Rules differ in whether they remove dead code.
std::string ops_of(Graph& graph) {
  const auto alive = graph.copy();
  torch::jit::EliminateDeadCode(alive);
  std::string ops;
  for (const Node* node : alive->nodes()) {
    if (is_container(node) || node->kind() == torch::jit::prim::Constant) continue;
    if (!ops.empty()) ops += ' ';
    ops += node->kind().toUnqualString();
  }
  return ops;
}

struct Outcome {
  std::vector<at::Tensor> tensors;  // the input after the run, then the results
  std::string error;                // of a run that fails
};

void collect_tensors(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) tensors.push_back(value.toTensor());
  if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) collect_tensors(item, tensors);
  }
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) collect_tensors(item, tensors);
  }
}

Outcome run(const Example& example) {
  const at::NoGradGuard no_grad;
  Outcome outcome;
  outcome.tensors.push_back(example.arguments[1].toTensor().clone());
  torch::jit::Stack stack = {example.arguments[0], outcome.tensors[0]};
  try {
    const torch::jit::Code code(example.graph->copy(), "forward");
    torch::jit::InterpreterState(code).run(stack);
  } catch (const std::exception& error) {
    outcome.error = error.what();
    return outcome;
  }
  for (const c10::IValue& result : stack) collect_tensors(result, outcome.tensors);
  return outcome;
}

// Returns the difference between both graphs that a caller sees, or an empty text. A graph may
// refuse other sizes than those that it was made for.
std::string difference(const Example& before, const Example& after) {
  const Outcome wanted = run(before), got = run(after);
  if (!wanted.error.empty()) return {};
  if (got.error.find("TA4303") != std::string::npos) return {};
  if (!got.error.empty()) return got.error;
  if (wanted.tensors.size() != got.tensors.size()) return "another number of results";
  for (std::size_t i = 0; i < wanted.tensors.size(); ++i) {
    const at::Tensor &a = wanted.tensors[i], &b = got.tensors[i];
    const std::string what = i == 0 ? "the input" : "result " + std::to_string(i);
    if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type())
      return what + " has another shape";
    if (!at::allclose(a, b, 1e-3, 1e-3, /*equal_nan=*/true)) return what + " has other values";
    for (std::size_t j = 0; j < i; ++j) {
      if (a.is_alias_of(wanted.tensors[j]) != b.is_alias_of(got.tensors[j]))
        return what + " shares memory with another tensor in one graph only";
    }
  }
  return {};
}

// Runs the rule on a copy of `example`, checks that it computes the same, and returns it.
Example apply(Rule rule, const Example& example) {
  Example changed = copy_of(example);
  SeenTensors seen = see_tensors(changed.graph, changed.arguments);
  rule(changed, seen);
  changed.graph->lint();
  std::string found = difference(example, changed);
  if (found.empty()) {
    const Example other = resized(example);
    found = difference(other, {changed.graph, other.arguments});
  }
  EXPECT_EQ(found, "") << "before:\n" << *example.graph << "after:\n" << *changed.graph;
  return changed;
}

// Returns the graph with a write to tensor `t` in front of node `n`, the last of which is the
// return. Returns nullopt if there is no such tensor, node or run.
std::optional<Example> with_write(const Example& example, std::size_t t, std::size_t n,
                                  std::string* name) {
  Example written = copy_of(example);
  std::vector<Value*> tensors = {written.graph->inputs()[1]};
  std::vector<Node*> nodes;
  for (Node* node : written.graph->nodes()) {
    nodes.push_back(node);
    for (Value* output : node->outputs()) {
      if (is_tensor(output) && node->kind() != torch::jit::prim::Constant)
        tensors.push_back(output);
    }
  }
  nodes.push_back(written.graph->return_node());
  if (t >= tensors.size() || n >= nodes.size()) return std::nullopt;
  // A list or a tuple stays in front of its reader: see give_own_list() in simplify.cpp.
  if (n > 0 && is_container(nodes[n - 1])) return std::nullopt;
  Value* const tensor = tensors[t];
  if (t > 0 && !tensor->node()->isBefore(nodes[n])) return std::nullopt;
  *name = tensor->hasDebugName() ? tensor->debugNameBase() : "";
  // The cosine neither scales nor shifts, so no norm hides it.
  written.graph->create(c10::Symbol::fromQualString("aten::cos_"), {tensor})
      ->insertBefore(nodes[n]);
  if (!run(written).error.empty()) return std::nullopt;
  return written;
}

void check_writes(const RuleCase& rule_case, const Example& example) {
  const std::size_t nodes =
      std::distance(example.graph->nodes().begin(), example.graph->nodes().end());
  std::vector<std::string> missing = rule_case.unwritten;
  std::string name;
  for (std::size_t t = 0; t <= nodes; ++t) {
    for (std::size_t n = 0; n <= nodes; ++n) {
      const std::optional<Example> written = with_write(example, t, n, &name);
      if (!written) continue;
      const Example changed = apply(rule_case.rule, *written);
      const auto& unwritten = rule_case.unwritten;
      if (std::find(unwritten.begin(), unwritten.end(), name) == unwritten.end()) continue;
      EXPECT_EQ(ops_of(*changed.graph), ops_of(*written->graph)) << name << " is written";
      std::erase(missing, name);
    }
  }
  EXPECT_TRUE(missing.empty()) << "no tensor " << missing.front();
}

}  // namespace

void check(const RuleCase& rule_case) {
  const Example example = make_example(rule_case.forward, rule_case.x);
  ASSERT_EQ(run(example).error, "");
  const Example changed = apply(rule_case.rule, example);
  const std::string before = ops_of(*example.graph);
  if (rule_case.becomes != nullptr) EXPECT_NE(before, rule_case.becomes) << "nothing to rewrite";
  EXPECT_EQ(ops_of(*changed.graph), rule_case.becomes != nullptr ? rule_case.becomes : before)
      << *changed.graph;
  check_writes(rule_case, example);
  const Rule all = [](Example& it, SeenTensors& seen) { seen = simplify(it.graph, it.arguments); };
  const Example simple = apply(all, example);
  EXPECT_EQ(ops_of(*apply(rule_case.rule, simple).graph), ops_of(*simple.graph))
      << "simplify() leaves this to the rule:\n"
      << *simple.graph;
}

}  // namespace torchalgo
