// SPDX-License-Identifier: BSD-3-Clause
#include "import/names.h"

#include <fmt/format.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "import/read_op.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Node;
using torch::jit::Value;

namespace {

// The position of a node's call: the module's path, and its class if the front end kept it.
struct Place {
  std::string path;
  std::string class_name;
};

void append(std::string& path, std::string_view part) {
  if (!path.empty() && !part.empty()) path += '.';
  path += part;
}

// Tracing: "__module.layer1/__module.layer1.0/__module.layer1.0.conv1".
std::string scope_path(const Node* node) {
  const std::string scope = node->scopeName();
  std::string_view last(scope);
  last = last.substr(last.rfind('/') == last.npos ? 0 : last.rfind('/') + 1);
  constexpr std::string_view kRoot = "__module";
  if (!last.starts_with(kRoot)) return {};
  last.remove_prefix(std::min(last.size(), kRoot.size() + 1));
  return std::string(last);
}

// Scripting: a stack of calls whose entries are module instances, or functions with none.
Place place_of(const Node* node) {
  Place place;
  if (const auto stack = node->callstack()) {
    for (const auto& [function, range, instance] : (*stack)->vec()) {
      if (!instance || instance->instance_name() == "SELF") continue;
      append(place.path, instance->instance_name());
      const auto type = instance->class_type();
      place.class_name = type && type->name() ? type->name()->qualifiedName() : std::string{};
    }
  }
  if (std::string path = scope_path(node); !path.empty()) place.path = std::move(path);
  return place;
}

// "self.layer1.0.conv1.weight_fused_bn" -> "layer1.0.conv1": freezing names a parameter by where it
// was.
std::optional<std::string> owner_of(const Value* parameter) {
  if (!parameter->hasDebugName()) return std::nullopt;
  const std::string full = parameter->debugName();
  std::string_view name(full);
  if (!name.starts_with("self.")) return std::nullopt;
  name.remove_prefix(5);
  while (!name.empty()) {
    const std::size_t dot = name.rfind('.');
    const std::string_view last = name.substr(dot == name.npos ? 0 : dot + 1);
    const std::string_view rest = name.substr(0, dot == name.npos ? 0 : dot);
    if (last.starts_with("weight") || last.starts_with("running_mean")) return std::string(rest);
    if (!std::all_of(last.begin(), last.end(), [](unsigned char c) { return std::isdigit(c); })) {
      break;
    }
    name = rest;
  }
  return std::nullopt;
}

// Returns the parameter that makes the node a layer, or null if it has none.
const Value* weights_input(const Node* node) {
  if (node->maybeSchema() == nullptr) return nullptr;
  const Value* found = nullptr;
  for (const char* name : {"running_mean", "weight"}) {
    if (!node->hasNamedInput(name)) continue;
    const Value* input = node->namedInput(name);
    if (found == nullptr || !is_none(input)) found = input;
  }
  return found;
}

std::vector<std::string_view> split(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    parts.push_back(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return parts;
}

// Returns true if `call` equals `path` except for names that a scripted ModuleList lost.
bool may_be_called(std::string_view path, std::string_view call) {
  const auto path_parts = split(path);
  const auto call_parts = split(call);
  if (call_parts.empty()) return true;
  if (path_parts.empty() || path_parts.back() != call_parts.back()) return false;
  auto next = call_parts.begin();
  for (const std::string_view part : path_parts) {
    if (next != call_parts.end() && part == *next) ++next;
  }
  return next == call_parts.end();
}

// Modules of torch.nn that are one op, so that the module's name is the op's.
bool is_one_op(std::string_view class_name) {
  constexpr std::array<std::string_view, 6> kFiles = {"activation", "pooling", "dropout",
                                                      "upsampling", "flatten", "padding"};
  constexpr std::string_view kPrefix = "__torch__.torch.nn.modules.";
  if (!class_name.starts_with(kPrefix)) return false;
  class_name.remove_prefix(kPrefix.size());
  const std::string_view file = class_name.substr(0, class_name.find('.'));
  return std::find(kFiles.begin(), kFiles.end(), file) != kFiles.end();
}

// "conv2d" for aten::_convolution, "relu" for aten::relu_, "list_unpack" for prim::ListUnpack.
std::string op_name(const Node* node) {
  if (is_convolution(node) && std::string_view(node->kind().toUnqualString())[0] == '_') {
    const bool transposed = node->hasNamedInput("transposed") &&
                            constant_bool(node->namedInput("transposed")).value_or(false);
    const auto weights = constant_tensor(node->namedInput("weight"));
    const std::string rank = weights ? fmt::format("{}d", weights->dim() - 2) : std::string{};
    return (transposed ? "conv_transpose" : "conv") + rank;
  }
  std::string name;
  for (const char c : std::string_view(node->kind().toUnqualString())) {
    if (std::isupper(static_cast<unsigned char>(c)) && !name.empty()) name += '_';
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  while (name.size() > 1 && name.back() == '_') name.pop_back();
  while (name.size() > 1 && name.front() == '_') name.erase(0, 1);
  return name;
}

// Names the layers and functions of one graph by the modules that call them.
class Namer {
 public:
  explicit Namer(const std::vector<Node*>& nodes) {
    for (const Node* node : nodes) {
      places_.push_back(place_of(node));
      const std::string& path = places_.back().path;
      for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
        parents_.insert(path.substr(0, dot));
      }
      if (const Value* weights = weights_input(node)) weights_at_[path].insert(weights);
    }
  }

  std::string next_name(const Node* node) {
    const Place& place = places_[next_++];
    std::string name = own_path(node, place);
    if (name.empty() && !place.path.empty()) name = place.path + "." + op_name(node);
    if (name.empty()) {
      const std::string op = op_name(node);
      name = fmt::format("{}_{}", op, nameless_[op]++);
    }
    const int call = calls_[name]++;
    return call == 0 ? name : fmt::format("{}#{}", name, call);
  }

 private:
  // Returns the path that names the node by itself. Returns an empty text if the op's name must be
  // added.
  [[nodiscard]] std::string own_path(const Node* node, const Place& place) const {
    const Value* weights = weights_input(node);
    if (weights == nullptr) return is_one_op(place.class_name) ? place.path : std::string{};
    // Equal constants may be pooled, so the owner counts only where the call does not contradict.
    const auto owner = owner_of(weights);
    if (owner && may_be_called(*owner, place.path)) return *owner;
    // A module that calls no other and has one layer in it is that layer: a normalized weight has
    // no owner.
    const bool is_layer = !parents_.contains(place.path) && weights_at_.at(place.path).size() == 1;
    return is_layer ? place.path : std::string{};
  }

  std::vector<Place> places_;
  std::set<std::string> parents_;  // of modules that are called
  std::map<std::string, std::set<const Value*>> weights_at_;
  std::size_t next_ = 0;
  std::map<std::string, int> nameless_;
  std::map<std::string, int> calls_;
};

}  // namespace

std::vector<std::string> name_nodes(const std::vector<Node*>& nodes) {
  Namer namer(nodes);
  std::vector<std::string> names;
  for (const Node* node : nodes) names.push_back(namer.next_name(node));
  return names;
}

std::vector<std::string> argument_names(const torch::jit::Graph& graph) {
  std::vector<std::string> names;
  for (std::size_t i = 1; i < graph.inputs().size(); ++i) {
    const Value* input = graph.inputs()[i];
    std::string name = input->hasDebugName() ? input->debugNameBase() : fmt::format("input_{}", i);
    std::replace(name.begin(), name.end(), '.', '_');
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      name = fmt::format("{}_{}", name, i);
    }
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace torchalgo
