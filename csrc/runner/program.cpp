// SPDX-License-Identifier: BSD-3-Clause
#include "runner/program.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace torchalgo {
namespace {

using torch::jit::Node;
using torch::jit::Value;

// Returns true if no op keeps or changes the value. Only then may all runs share a constant.
bool is_only_read(const Value& value) {
  return std::all_of(value.uses().begin(), value.uses().end(), [](const torch::jit::Use& use) {
    const c10::FunctionSchema* const schema = use.user->maybeSchema();
    return schema != nullptr && use.offset < schema->arguments().size() &&
           schema->arguments()[use.offset].alias_info() == nullptr;
  });
}

// Reads a graph into a program.
class Reader {
 public:
  explicit Reader(const torch::jit::Module& module) : graph_(module.get_method("forward").graph()) {
    const auto inputs = graph_->inputs();
    places_[inputs[0]] = add_constant(module._ivalue());
    for (std::size_t i = 1; i < inputs.size(); ++i) places_[inputs[i]] = read_.values++;
    read_.inputs = read_.values;
  }

  std::unique_ptr<Program> read() {
    const auto outputs = graph_->outputs();
    if (!takes_tensors() || outputs.size() != 1) return nullptr;
    for (Node* const node : graph_->nodes()) {
      if (!read_node(*node)) return nullptr;
      ++position_;
    }
    const auto result = places_.find(outputs[0]);
    if (result == places_.end()) return nullptr;
    read_.result = result->second;
    drop_unused_constants();
    return std::make_unique<Program>(std::move(read_));
  }

 private:
  // Returns true if all arguments are tensors. For numbers, the interpreter converts tensors.
  [[nodiscard]] bool takes_tensors() const {
    const auto inputs = graph_->inputs();
    return std::all_of(inputs.begin() + 1, inputs.end(), [](const Value* input) {
      return input->type()->isSubtypeOf(*c10::TensorType::get());
    });
  }

  Place add_constant(c10::IValue value) {
    read_.constants.push_back(std::move(value));
    return ~static_cast<Place>(read_.constants.size() - 1);
  }
  [[nodiscard]] const c10::IValue* constant(const Value* value) const {
    const auto known = places_.find(value);
    if (known == places_.end() || !is_constant(known->second)) return nullptr;
    return &read_.constants[~known->second];
  }

  bool read_node(Node& node) {
    if (!node.blocks().empty()) return false;
    switch (node.kind()) {
      case c10::prim::Constant: {
        const auto value = torch::jit::toIValue(node.output());
        if (!value) return false;
        places_[node.output()] = add_constant(*value);
        return true;
      }
      case c10::prim::GetAttr: {
        const c10::IValue* const object = constant(node.input());
        if (object == nullptr || !object->isObject()) return false;
        places_[node.output()] =
            add_constant(object->toObjectRef().getAttr(node.s(c10::attr::name)));
        return true;
      }
      case c10::prim::ListConstruct:
        return read_list(node);
      case c10::prim::TupleConstruct: {
        const auto type = node.output()->type()->cast<c10::TupleType>();
        return type && !type->schema() && add_step(ProgramStep::Kind::kTuple, node);
      }
      case c10::prim::ListUnpack:
        return add_step(ProgramStep::Kind::kUnpackedList, node);
      case c10::prim::ConstantChunk:
        return read_chunk(node);
      default:
        break;
    }
    // The interpreter passes the number of arguments to a vararg op. The schema of a varret op does
    // not say how many results it has.
    const torch::jit::Operator* const known = node.maybeOperator();
    if (known == nullptr || node.hasAttributes() || known->schema().is_vararg() ||
        known->schema().is_varret())
      return false;
    if (!add_step(ProgramStep::Kind::kOp, node)) return false;
    read_.steps.back().op = known->schema().operator_name();
    return true;
  }

  bool add_step(ProgramStep::Kind kind, const Node& node) {
    ProgramStep step;
    step.kind = kind;
    for (const Value* const input : node.inputs()) {
      const auto place = places_.find(input);
      if (place == places_.end()) return false;
      step.src.push_back(place->second);
    }
    step.first_result = read_.values;
    step.results = static_cast<int>(node.outputs().size());
    step.node = position_;
    for (const Value* const output : node.outputs()) places_[output] = read_.values++;
    read_.steps.push_back(std::move(step));
    return true;
  }

  // A list of constants becomes a constant if no op changes it.
  bool read_list(const Node& node) {
    const auto inputs = node.inputs();
    const c10::TypePtr element = node.output()->type()->expect<c10::ListType>()->getElementType();
    const bool is_constant_list =
        !inputs.empty() && is_only_read(*node.output()) &&
        std::all_of(inputs.begin(), inputs.end(),
                    [&](const Value* input) { return constant(input) != nullptr; });
    if (is_constant_list) {
      c10::impl::GenericList list(element);
      for (const Value* const input : inputs) list.push_back(*constant(input));
      places_[node.output()] = add_constant(std::move(list));
      return true;
    }
    if (!add_step(ProgramStep::Kind::kList, node)) return false;
    read_.steps.back().element = element;
    return true;
  }

  // A chunk whose number of parts is an attribute becomes a chunk that returns a list.
  bool read_chunk(const Node& node) {
    const auto src = places_.find(node.input());
    if (src == places_.end()) return false;
    ProgramStep chunk;
    chunk.op = {"aten::chunk", ""};
    chunk.src = {src->second, add_constant(node.i(c10::attr::chunks)),
                 add_constant(node.i(c10::attr::dim))};
    chunk.first_result = read_.values++;
    chunk.node = position_;
    ProgramStep parts;
    parts.kind = ProgramStep::Kind::kUnpackedList;
    parts.src = {chunk.first_result};
    parts.first_result = read_.values;
    parts.results = static_cast<int>(node.outputs().size());
    parts.node = position_;
    for (const Value* const output : node.outputs()) places_[output] = read_.values++;
    read_.steps.push_back(std::move(chunk));
    read_.steps.push_back(std::move(parts));
    return true;
  }

  // Drops the module itself, and constants that are elements of constant lists only.
  void drop_unused_constants() {
    std::vector<Place> moved(read_.constants.size(), 0);  // 0: it is not used
    std::vector<c10::IValue> used;
    const auto move = [&](Place& place) {
      if (!is_constant(place)) return;
      Place& to = moved[~place];
      if (to == 0) {
        to = ~static_cast<Place>(used.size());
        used.push_back(std::move(read_.constants[~place]));
      }
      place = to;
    };
    for (ProgramStep& step : read_.steps) std::for_each(step.src.begin(), step.src.end(), move);
    move(read_.result);
    read_.constants = std::move(used);
  }

  std::shared_ptr<torch::jit::Graph> graph_;
  Program read_;
  int position_ = 0;  // of the node that is read
  std::unordered_map<const Value*, Place> places_;
};

}  // namespace

std::unique_ptr<Program> read_program(const torch::jit::Module& module) {
  return Reader(module).read();
}

}  // namespace torchalgo
