// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/tensor_info.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

void note_tensor(const at::Tensor& tensor, const Value* value, SeenTensors& seen) {
  if (!tensor.defined()) return;
  SeenTensor now{tensor.sizes().vec(), tensor.scalar_type(), tensor.device(),
                 tensor.layout() == at::kStrided};
  const auto [it, is_new] = seen.try_emplace(value, now);
  if (!is_new && it->second.sizes != now.sizes) it->second.is_always_so = false;
}

// Torch's profiling executor looks at the inputs of some ops only, so each value gets an observer.
// The interpreter passes it the value and, above it on the stack, a frame number.
template <typename Note>
Node* make_observer(Graph& graph, Value* observed, Note note) {
  auto* observer = new torch::jit::ProfileIValueOp(&graph, [note](auto& stack) {
    stack.pop_back();
    note(stack.back());
    stack.pop_back();
  });
  observer->addInput(observed);
  return observer;
}

Node* make_observer(Graph& graph, Value* observed, const Value* original, SeenTensors& seen) {
  return make_observer(graph, observed, [original, &seen](const c10::IValue& value) {
    if (value.isTensor()) note_tensor(value.toTensor(), original, seen);
  });
}

// `copy` is a copy of `original`, so both have the same order of nodes.
void observe(Graph& graph, Block* original, Block* copy, SeenTensors& seen) {
  const std::vector<Node*> nodes(copy->nodes().begin(), copy->nodes().end());
  for (std::size_t i = original->inputs().size(); i-- > 0;) {
    const Value* value = original->inputs()[i];
    if (!is_tensor(value)) continue;
    copy->prependNode(make_observer(graph, copy->inputs()[i], value, seen));
  }
  auto node = nodes.begin();
  for (Node* from : original->nodes()) {
    Node* to = *node++;
    TORCHALGO_ASSERT(to->kind() == from->kind() && to->blocks().size() == from->blocks().size());
    for (std::size_t b = 0; b < from->blocks().size(); ++b) {
      observe(graph, from->blocks()[b], to->blocks()[b], seen);
    }
    if (from->kind() == torch::jit::prim::Constant) continue;
    for (std::size_t i = 0; i < from->outputs().size(); ++i) {
      const Value* value = from->outputs()[i];
      if (is_tensor(value)) make_observer(graph, to->outputs()[i], value, seen)->insertAfter(to);
    }
  }
}

void run_observed(const std::shared_ptr<Graph>& copy, const std::vector<c10::IValue>& arguments) {
  // The model may write into its attributes and arguments; the caller's must stay as they are.
  torch::jit::Stack stack = {arguments.at(0).deepcopy()};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    stack.push_back(argument.isTensor() ? c10::IValue(argument.toTensor().clone()) : argument);
  }
  const at::NoGradGuard no_grad;
  try {
    const torch::jit::Code code(copy, "torchalgo::see_tensors");
    torch::jit::InterpreterState(code).run(stack);
  } catch (const std::exception& error) {
    std::vector<std::string> sizes;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
      if (arguments[i].isTensor()) sizes.push_back(c10::str(arguments[i].toTensor().sizes()));
    }
    throw Error(fmt::format("TA1110 import_graph: forward fails on example inputs of sizes {}: {}",
                            fmt::join(sizes, ", "), cause_of(error)));
  }
}

}  // namespace

SeenTensors see_tensors(const script::Graph& view, const std::vector<c10::IValue>& arguments) {
  const std::shared_ptr<Graph>& graph = view.get();
  SeenTensors seen;
  const auto copy = graph->copy();
  observe(*copy, graph->block(), copy->block(), seen);
  run_observed(copy, arguments);
  return seen;
}

std::unordered_map<script::Node, bool> see_branches(const script::Graph& view,
                                                    const std::vector<c10::IValue>& arguments) {
  const std::shared_ptr<Graph>& graph = view.get();
  std::unordered_map<script::Node, bool> seen;
  const auto copy = graph->copy();
  const std::vector<Node*> nodes(copy->nodes().begin(), copy->nodes().end());
  auto to = nodes.begin();
  for (const Node* from : graph->nodes()) {
    Node* const node = *to++;
    if (from->kind() != torch::jit::prim::If) continue;
    const auto note = [from, &seen](const c10::IValue& condition) {
      seen[from] = condition.toBool();
    };
    make_observer(*copy, node->input(0), note)->insertBefore(node);
  }
  run_observed(copy, arguments);
  return seen;
}

std::optional<std::int64_t> rank_of(script::Value tensor, const SeenTensors& seen) {
  const auto it = seen.find(tensor);
  if (it == seen.end() || !it->second.is_always_so) return std::nullopt;
  return static_cast<std::int64_t>(it->second.sizes.size());
}

std::string cause_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  constexpr std::string_view kMark = "RuntimeError: ";
  if (const auto at = text.rfind(kMark); at != std::string::npos) {
    text.erase(0, at + kMark.size());
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::optional<DType> dtype_of_scalar(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBf16;
    default:
      return std::nullopt;
  }
}

TensorInfo describe(const SeenTensor* seen) {
  TensorInfo info;
  if (seen == nullptr || !seen->is_always_so) {
    info.obstacle = "the example inputs do not fix its shape";
    return info;
  }
  info.sizes = seen->sizes;
  info.dtype = dtype_of_scalar(seen->scalar_type);
  if (!info.dtype) {
    info.obstacle = fmt::format("tensors of {} are not planned", c10::toString(seen->scalar_type));
  } else if (!seen->device.is_cpu() && !seen->device.is_cuda()) {
    info.obstacle = fmt::format("it runs on {}, only CPU and CUDA are planned", seen->device.str());
  } else if (!seen->is_strided) {
    info.obstacle = "a tensor of it is not dense";
  }
  for (const std::int64_t size : info.sizes) {
    if (size < 1) info.obstacle = "a tensor of it is empty";
  }
  return info;
}

}  // namespace torchalgo
