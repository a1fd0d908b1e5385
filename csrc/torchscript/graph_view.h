// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>

#include <compare>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace c10 {
struct FunctionSchema;
}
namespace torch::jit {
struct Block;
struct Graph;
struct Node;
struct Value;
}  // namespace torch::jit

/// The graphs of TorchScript as the passes see them that read and simplify them: kinds, inputs,
/// outputs, constants, readers; insert, replace and remove. This header and those that include it
/// need no header of torch's jit. `Value`, `Node` and `Block` are pointers: a copy is the same
/// value, and a default one is null.
namespace torchalgo::script {

class Block;
class Node;
struct Use;

class Value {
 public:
  Value(const torch::jit::Value* value = nullptr)  // NOLINT: as a pointer converts
      : value_(const_cast<torch::jit::Value*>(value)) {}
  [[nodiscard]] torch::jit::Value* get() const { return value_; }
  explicit operator bool() const { return get() != nullptr; }
  auto operator<=>(const Value&) const = default;

  /// Returns the node that makes the value.
  [[nodiscard]] Node node() const;
  /// Returns which output of its node the value is.
  [[nodiscard]] std::size_t offset() const;
  [[nodiscard]] std::vector<Use> uses() const;
  [[nodiscard]] c10::TypePtr type() const;
  /// Returns the constant that the value holds, or nullopt.
  [[nodiscard]] std::optional<c10::IValue> constant() const;
  /// Returns the name that the front end gave the value, or an empty text.
  [[nodiscard]] std::string name() const;

  void set_name(const std::string& name) const;
  void set_type(const c10::TypePtr& type) const;
  /// Lets all readers of the value read `by`.
  void replace_uses(Value by) const;

 private:
  torch::jit::Value* value_;
};

class Node {
 public:
  Node(const torch::jit::Node* node = nullptr)  // NOLINT: as a pointer converts
      : node_(const_cast<torch::jit::Node*>(node)) {}
  [[nodiscard]] torch::jit::Node* get() const { return node_; }
  explicit operator bool() const { return get() != nullptr; }
  auto operator<=>(const Node&) const = default;

  /// Returns the name of the op, such as "aten::relu".
  [[nodiscard]] std::string_view kind() const;
  /// Returns the name of the op without its namespace, such as "relu".
  [[nodiscard]] std::string_view name() const;
  /// Returns true if the op is one of `kinds`.
  template <std::convertible_to<std::string_view>... Kinds>
  [[nodiscard]] bool is(const Kinds&... kinds) const {
    const std::string_view own = kind();
    return ((own == kinds) || ...);
  }

  [[nodiscard]] std::vector<Value> inputs() const;
  [[nodiscard]] std::vector<Value> outputs() const;
  [[nodiscard]] std::size_t input_count() const;
  [[nodiscard]] std::size_t output_count() const;
  [[nodiscard]] Value input(std::size_t i) const;
  [[nodiscard]] Value output(std::size_t i) const;
  /// Returns the only output.
  [[nodiscard]] Value output() const;
  /// Returns true if the op's schema has an argument `name`.
  [[nodiscard]] bool has_argument(const char* name) const;
  /// Returns the argument `name` of the op's schema, which must have it.
  [[nodiscard]] Value argument(const char* name) const;
  /// Returns the op's schema, or null.
  [[nodiscard]] const c10::FunctionSchema* schema() const;
  [[nodiscard]] bool has_side_effects() const;

  /// Returns the blocks of a branch or a loop.
  [[nodiscard]] std::vector<Block> blocks() const;
  /// Returns the block that the node stands in.
  [[nodiscard]] Block block() const;
  /// Returns the node after this one in its block.
  [[nodiscard]] Node next() const;
  [[nodiscard]] bool is_before(Node other) const;
  /// Returns true if the node stands in the graph itself, not in a branch or a loop.
  [[nodiscard]] bool is_outermost() const;

  void replace_input(std::size_t i, Value by) const;
  void replace_argument(const char* name, Value by) const;
  void move_before(Node other) const;
  /// Replaces the node by one of another kind with the same inputs and results.
  [[nodiscard]] Node renamed(std::string_view kind) const;
  /// Removes the node, whose results nothing reads.
  void destroy() const;

 private:
  torch::jit::Node* node_;
};

/// Input `offset` of `user`.
struct Use {
  Node user;
  std::size_t offset;
};

class Block {
 public:
  explicit Block(const torch::jit::Block* block) : block_(const_cast<torch::jit::Block*>(block)) {}
  bool operator==(const Block&) const = default;

  /// Returns the nodes of the block, without those of inner blocks.
  [[nodiscard]] std::vector<Node> nodes() const;
  [[nodiscard]] std::vector<Value> outputs() const;

 private:
  torch::jit::Block* block_;
};

class Graph {
 public:
  Graph(std::shared_ptr<torch::jit::Graph> graph)  // NOLINT: as a pointer converts
      : graph_(std::move(graph)) {}
  [[nodiscard]] const std::shared_ptr<torch::jit::Graph>& get() const { return graph_; }

  /// Returns the nodes of the outermost block.
  [[nodiscard]] std::vector<Node> nodes() const { return block().nodes(); }
  [[nodiscard]] Block block() const;
  /// Returns the node whose inputs are the results of the graph.
  [[nodiscard]] Node return_node() const;
  void remove_dead_code() const;

 private:
  std::shared_ptr<torch::jit::Graph> graph_;
};

/// Says which tensors share memory with one that the graph writes in place. It knows the graph as
/// it was when this object was made; a pass adds no writer.
class Writes {
 public:
  explicit Writes(const Graph& graph);
  ~Writes();
  Writes(const Writes&) = delete;
  Writes& operator=(const Writes&) = delete;

  [[nodiscard]] bool has(Value value) const;
  /// Returns true if a tensor is written in place among `value` and those that it is computed of,
  /// down to `sources`. Constants and what is no tensor do not count.
  [[nodiscard]] bool has_any(Value value, const std::vector<Value>& sources) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// An argument of a new node: a value of the graph or a constant.
class Argument {
 public:
  Argument(Value value) : value_(value) {}  // NOLINT: {x, 1} are arguments
  template <typename T>
  requires std::constructible_from<c10::IValue, T> Argument(T&& constant)
      : constant_(std::forward<T>(constant)) {}  // NOLINT: as above

  [[nodiscard]] Value value() const { return value_; }
  [[nodiscard]] const c10::IValue& constant() const { return constant_; }

 private:
  Value value_;
  c10::IValue constant_;
};

/// Inserts nodes in front of `before`. They get the source line and the layer of `like`, or none if
/// that is null.
class Builder {
 public:
  Builder(Node before, Node like) : before_(before), like_(like) {}
  Builder(Node before) : Builder(before, before) {}  // NOLINT: the usual place
  /// Returns a builder at the same place for another `like`.
  [[nodiscard]] Builder like(Node like) const { return {before_, like}; }
  /// Returns a builder for the same `like` at another place.
  [[nodiscard]] Builder in_front_of(Node before) const { return {before, like_}; }

  [[nodiscard]] Value constant(const c10::IValue& constant) const;
  /// Inserts a constant that is the weights of a layer in place of `weight`, whose name it gets: it
  /// names the layer.
  [[nodiscard]] Value weight(const at::Tensor& constant, Value weight) const;
  /// Calls the op `kind`. Arguments at the end that have a default may be missing.
  /// @return  the result.
  [[nodiscard]] Value call(std::string_view kind, const std::vector<Argument>& arguments) const;
  /// Inserts a node with these inputs as they are. Its results are tensors.
  Node node(std::string_view kind, const std::vector<Argument>& inputs,
            std::size_t results = 1) const;
  /// Returns the only result of such a node.
  [[nodiscard]] Value op(std::string_view kind, const std::vector<Argument>& inputs) const {
    return node(kind, inputs).output();
  }
  /// Inserts a list of tensors.
  [[nodiscard]] Value tensors(const std::vector<Value>& items) const;
  /// Inserts a list of integers.
  [[nodiscard]] Value ints(const std::vector<Value>& items) const;
  /// Inserts a copy of `node` whose first inputs are `inputs`.
  Node copy(Node node, const std::vector<Value>& inputs) const;

 private:
  [[nodiscard]] Value list(const c10::TypePtr& type, const std::vector<Value>& items) const;

  Node before_, like_;
};

}  // namespace torchalgo::script

template <>
struct std::hash<torchalgo::script::Value> {
  std::size_t operator()(torchalgo::script::Value value) const noexcept {
    return std::hash<const void*>()(value.get());
  }
};
template <>
struct std::hash<torchalgo::script::Node> {
  std::size_t operator()(torchalgo::script::Node node) const noexcept {
    return std::hash<const void*>()(node.get());
  }
};
