// SPDX-License-Identifier: BSD-3-Clause
#include "torchscript/graph_view.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>

#include "torchscript/constants.h"

namespace torchalgo::script {

namespace {

std::vector<Value> as_values(at::ArrayRef<torch::jit::Value*> values) {
  return {values.begin(), values.end()};
}

c10::Symbol symbol_of(std::string_view kind) {
  return c10::Symbol::fromQualString(std::string(kind));
}

}  // namespace

Node Value::node() const { return value_->node(); }
std::size_t Value::offset() const { return value_->offset(); }

std::vector<Use> Value::uses() const {
  std::vector<Use> uses;
  for (const torch::jit::Use& use : value_->uses()) uses.push_back({use.user, use.offset});
  return uses;
}

c10::TypePtr Value::type() const { return value_->type(); }
std::optional<c10::IValue> Value::constant() const { return torch::jit::toIValue(value_); }
std::string Value::name() const { return value_->hasDebugName() ? value_->debugName() : ""; }
void Value::set_name(const std::string& name) const { value_->setDebugName(name); }
void Value::set_type(const c10::TypePtr& type) const { value_->setType(type); }
void Value::replace_uses(Value by) const { value_->replaceAllUsesWith(by.get()); }

std::string_view Node::kind() const { return node_->kind().toQualString(); }
std::string_view Node::name() const { return node_->kind().toUnqualString(); }
std::vector<Value> Node::inputs() const { return as_values(node_->inputs()); }
std::vector<Value> Node::outputs() const { return as_values(node_->outputs()); }
std::size_t Node::input_count() const { return node_->inputs().size(); }
std::size_t Node::output_count() const { return node_->outputs().size(); }
Value Node::input(std::size_t i) const { return node_->input(i); }
Value Node::output(std::size_t i) const { return node_->output(i); }
Value Node::output() const { return node_->output(); }
bool Node::has_argument(const char* name) const { return node_->hasNamedInput(name); }
Value Node::argument(const char* name) const { return node_->namedInput(name); }
const c10::FunctionSchema* Node::schema() const { return node_->maybeSchema(); }
bool Node::has_side_effects() const { return node_->hasSideEffects(); }

std::vector<Block> Node::blocks() const {
  std::vector<Block> blocks;
  for (const torch::jit::Block* block : node_->blocks()) blocks.emplace_back(block);
  return blocks;
}

Block Node::block() const { return Block(node_->owningBlock()); }
Node Node::next() const { return node_->next(); }
bool Node::is_before(Node other) const { return node_->isBefore(other.get()); }
bool Node::is_outermost() const { return node_->owningBlock() == node_->owningGraph()->block(); }
void Node::replace_input(std::size_t i, Value by) const { node_->replaceInput(i, by.get()); }

void Node::replace_argument(const char* name, Value by) const {
  replace_input(*node_->schema().argumentIndexWithName(name), by);
}

void Node::move_before(Node other) const { node_->moveBefore(other.get()); }

Node Node::renamed(std::string_view kind) const {
  torch::jit::Node* const made = node_->replaceWithNewSymbol(symbol_of(kind));
  made->copyMetadata(node_);
  node_->destroy();
  return made;
}

void Node::destroy() const { node_->destroy(); }

std::vector<Node> Block::nodes() const { return {block_->nodes().begin(), block_->nodes().end()}; }
std::vector<Value> Block::outputs() const { return as_values(block_->outputs()); }

Block Graph::block() const { return Block(graph_->block()); }
Node Graph::return_node() const { return graph_->return_node(); }
void Graph::remove_dead_code() const { torch::jit::EliminateDeadCode(graph_); }

struct Writes::Impl {
  explicit Impl(const Graph& graph) : aliases(graph.get()) {}
  torch::jit::AliasDb aliases;
};

Writes::Writes(const Graph& graph) : impl_(std::make_unique<Impl>(graph)) {}
Writes::~Writes() = default;

bool Writes::has(Value value) const { return impl_->aliases.hasWriters(value.get()); }

bool Writes::has_any(Value value, const std::vector<Value>& sources) const {
  if (!is_tensor(value) || constant_tensor(value)) return false;
  if (has(value)) return true;
  if (std::find(sources.begin(), sources.end(), value) != sources.end()) return false;
  const std::vector<Value> inputs = value.node().inputs();
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](Value input) { return has_any(input, sources); });
}

Value Builder::constant(const c10::IValue& constant) const {
  const torch::jit::WithInsertPoint at(before_.get());
  return before_.get()->owningGraph()->insertConstant(constant);
}

Value Builder::weight(const at::Tensor& tensor, Value weight) const {
  const Value made = constant(tensor);
  if (const std::string name = weight.name(); !name.empty()) made.set_name(name);
  return made;
}

Value Builder::call(std::string_view kind, const std::vector<Argument>& arguments) const {
  std::vector<torch::jit::NamedValue> values;
  for (const Argument& argument : arguments) {
    if (argument.value()) {
      values.emplace_back(argument.value().get());
    } else {
      values.emplace_back(argument.constant());
    }
  }
  const torch::jit::WithInsertPoint at(before_.get());
  torch::jit::Value* const made = before_.get()->owningGraph()->insert(symbol_of(kind), values);
  if (like_) made->node()->copyMetadata(like_.get());
  return made;
}

Node Builder::node(std::string_view kind, const std::vector<Argument>& inputs,
                   std::size_t results) const {
  torch::jit::Graph& graph = *before_.get()->owningGraph();
  std::vector<torch::jit::Value*> values;
  for (const Argument& input : inputs) {
    values.push_back((input.value() ? input.value() : constant(input.constant())).get());
  }
  torch::jit::Node* const made = graph.create(symbol_of(kind), values, results);
  if (like_) made->copyMetadata(like_.get());
  return made->insertBefore(before_.get());
}

Value Builder::tensors(const std::vector<Value>& items) const {
  return list(c10::TensorType::get(), items);
}

Value Builder::ints(const std::vector<Value>& items) const {
  return list(c10::IntType::get(), items);
}

Value Builder::list(const c10::TypePtr& type, const std::vector<Value>& items) const {
  std::vector<torch::jit::Value*> values;
  for (const Value item : items) values.push_back(item.get());
  return before_.get()
      ->owningGraph()
      ->createList(type, values)
      ->insertBefore(before_.get())
      ->output();
}

Node Builder::copy(Node node, const std::vector<Value>& inputs) const {
  torch::jit::Node* const made = before_.get()->owningGraph()->createClone(
      node.get(), [](torch::jit::Value* value) { return value; });
  for (std::size_t i = 0; i < inputs.size(); ++i) made->replaceInput(i, inputs[i].get());
  return made->insertBefore(before_.get());
}

}  // namespace torchalgo::script
