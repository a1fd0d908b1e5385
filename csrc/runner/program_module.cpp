// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <torch/csrc/jit/frontend/schema_matching.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "runner/program.h"

namespace torchalgo {
namespace {

using torch::jit::Module;
using torch::jit::Value;

// Writes a program as the forward of a module.
class Writer {
 public:
  Writer(const Program& program, const std::vector<std::string>& names)
      : program_(program),
        module_("__torch__.Planned", std::make_shared<torch::jit::CompilationUnit>()),
        graph_(std::make_shared<torch::jit::Graph>()) {
    self_ = graph_->addInput("self")->setType(module_.type());
    for (const std::string& name : names) values_.push_back(graph_->addInput(name));
  }

  Module write() {
    for (const ProgramStep& step : program_.steps) add(step);
    graph_->registerOutput(at(program_.result));
    graph_->lint();
    auto* const forward = module_._ivalue()->compilation_unit()->create_function(
        c10::QualifiedName(*module_.type()->name(), "forward"), graph_);
    module_.type()->addMethod(forward);
    return module_;
  }

 private:
  Value* at(Place place) { return is_constant(place) ? constant(place) : values_.at(place); }

  // A constant that TorchScript's source cannot express is an attribute, such as a planned op.
  Value* constant(Place place) {
    Value*& value = constants_[place];
    if (value != nullptr) return value;
    const c10::IValue& constant = program_.constants[~place];
    const auto written =
        constant.isObject() ? std::nullopt : torch::jit::tryInsertConstant(*graph_, constant);
    if (written) return value = *written;
    const std::string name = constant.isObject() ? fmt::format("_torchalgo_{}", objects_++)
                                                 : fmt::format("_constant_{}", ~place);
    module_.register_attribute(name, constant.type(), constant);
    value = graph_->insertNode(graph_->createGetAttr(self_, name))->output();
    return value->setType(constant.type());
  }

  void add(const ProgramStep& step) {
    std::vector<Value*> src;
    for (const Place place : step.src) src.push_back(at(place));
    switch (step.kind) {
      case ProgramStep::Kind::kList:
        return add(graph_->createList(step.element, src));
      case ProgramStep::Kind::kTuple:
        return add(graph_->createTuple(src));
      case ProgramStep::Kind::kUnpackedList:
        return add(graph_->createListUnpack(src[0], static_cast<std::size_t>(step.results)));
      case ProgramStep::Kind::kOp:
        break;
    }
    add_call(step, src);
  }

  void add(torch::jit::Node* node) {
    const auto outputs = graph_->insertNode(node)->outputs();
    values_.insert(values_.end(), outputs.begin(), outputs.end());
  }

  void add_call(const ProgramStep& step, const std::vector<Value*>& src) {
    const std::string name = c10::toString(step.op);
    const auto known = torch::jit::findOperatorFor(step.op);
    TORCHALGO_CHECK(known != nullptr, "TA2008 plan: this PyTorch has no op {}", name);
    std::vector<torch::jit::NamedValue> positional, named;
    for (std::size_t i = 0; i < src.size(); ++i) {
      const c10::Argument& argument = known->schema().arguments().at(i);
      (argument.kwarg_only() ? named : positional).emplace_back(argument.name(), src[i]);
    }
    const auto call = torch::jit::matchSchema(known->schema(), {}, *graph_, positional, named);
    torch::jit::Node* const node =
        graph_->create(c10::Symbol::fromQualString(step.op.name), call.inputs,
                       static_cast<std::size_t>(step.results));
    TORCHALGO_ASSERT(call.return_types.size() == node->outputs().size());
    for (std::size_t i = 0; i < call.return_types.size(); ++i)
      node->output(i)->setType(call.return_types[i]);
    // TorchScript finds an overload by the types of the arguments.
    const torch::jit::Operator* const made = node->maybeOperator();
    TORCHALGO_CHECK(made != nullptr && made->schema().operator_name() == step.op,
                    "TA2003 save: TorchScript cannot call {} as the plan does", name);
    add(node);
  }

  const Program& program_;
  Module module_;
  std::shared_ptr<torch::jit::Graph> graph_;
  Value* self_ = nullptr;
  std::vector<Value*> values_;                   // by place
  std::unordered_map<Place, Value*> constants_;  // those that are read
  int objects_ = 0;
};

}  // namespace

Module module_of(const Program& program, const std::vector<std::string>& names) {
  TORCHALGO_CHECK(
      static_cast<int>(names.size()) == program.inputs,
      "TA2005 plan: it takes {} tensors, its file names {}: the file is damaged, copy or "
      "save it again",
      program.inputs, names.size());
  return Writer(program, names).write();
}

}  // namespace torchalgo
