// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "torchscript/constants.h"

namespace torchalgo {

using script::Block;
using script::Graph;
using script::Node;
using script::Value;

namespace {

// Their results are always memory of their first argument, or lists of such tensors.
constexpr std::array<std::string_view, 15> kViews = {
    "aten::slice",   "aten::select",           "aten::narrow",    "aten::view",
    "aten::permute", "aten::transpose",        "aten::t",         "aten::unsqueeze",
    "aten::squeeze", "aten::expand",           "aten::chunk",     "aten::split",
    "aten::unbind",  "aten::split_with_sizes", "prim::ListUnpack"};

// They have a twin of the same name without the last underscore, as activations do.
constexpr std::array<std::string_view, 5> kInPlace = {"aten::add_", "aten::sub_", "aten::mul_",
                                                      "aten::div_", "aten::clamp_min_"};

bool is_in_place(Node node) {
  std::string_view name = node.name();
  if (is_any(node, kInPlace)) return true;
  if (!is_aten(node) || !name.ends_with('_')) return false;
  name.remove_suffix(1);
  return is_elementwise_name(name);
}

// Returns true if the op's results are new memory that nothing else refers to.
bool is_fresh(Node node) {
  return node.is("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose1d",
                 "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::_convolution",
                 "aten::linear", "aten::matmul", "aten::bmm", "aten::batch_norm",
                 "aten::layer_norm", "aten::group_norm", "aten::instance_norm", "aten::add",
                 "aten::sub", "aten::mul", "aten::div", "aten::softmax", "aten::clone", "aten::cat",
                 "aten::stack", "aten::max_pool1d", "aten::max_pool2d", "aten::max_pool3d",
                 "aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d",
                 "aten::adaptive_avg_pool1d", "aten::adaptive_avg_pool2d",
                 "aten::adaptive_max_pool2d", "aten::pixel_shuffle", "aten::upsample_nearest2d",
                 "aten::upsample_bilinear2d", "aten::mean", "aten::sum") ||
         (is_aten(node) && is_elementwise_name(node.name()));
}

bool is_container(Node node) { return node.is("prim::ListConstruct", "prim::TupleConstruct"); }

bool may_hold_tensor(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType || type.kind() == c10::TypeKind::AnyType)
    return true;
  const auto contained = type.containedTypes();
  return std::any_of(contained.begin(), contained.end(),
                     [](const c10::TypePtr& inner) { return may_hold_tensor(*inner); });
}

// A result in new memory, and how often it was changed so far.
struct Owner {
  Value current;  // the value that holds its present contents
  int version = 0;
  bool is_changed = false;
  bool is_refused = false;
  bool is_part_changed = false;  // through a view: no value holds the whole any more
};

// A part of what a value refers to: the owner of the memory, and the version that was current.
struct Part {
  int owner;
  int version;
};

struct Tracked {
  enum class Form {
    kWhole,      // the owner's tensor itself
    kView,       // always its memory
    kContainer,  // a list or a tuple
    kUnsure      // perhaps its memory, perhaps a copy
  };
  Form form;
  std::vector<Part> parts;
};

class Functionalizer {
 public:
  Functionalizer(const Graph& graph, const SeenTensors& seen) : graph_(graph), seen_(seen) {}

  bool run() {
    walk(/*rewrites=*/false);
    std::unordered_set<int> refused;
    bool is_any_left = false;
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      if (owners_[i].is_refused) refused.insert(static_cast<int>(i));
      is_any_left |= owners_[i].is_changed && !owners_[i].is_refused;
    }
    if (!is_any_left) return false;
    owners_.clear();
    tracked_.clear();
    newer_.clear();
    refused_ = std::move(refused);
    walk(/*rewrites=*/true);
    return true;
  }

 private:
  // Both walks number the owners in the same way: they meet the same nodes, and what the second one
  // adds makes no owner.
  void walk(bool rewrites) {
    rewrites_ = rewrites;
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) visit(node);
    use_inputs(graph_.return_node());
  }

  void visit(Node node) {
    if (!node.blocks().empty()) {
      for (const Block block : node.blocks()) refuse_captured(block);
      for (Value input : node.inputs()) refuse(input);
      return;
    }
    use_inputs(node);
    if (is_container(node)) {
      track(node.output(), Tracked::Form::kContainer, parts_of(node.inputs()));
    } else if (is_in_place(node)) {
      change(node);
    } else if (is_any(node, kViews)) {
      make_views(node);
    } else if (is_fresh(node) && is_tensor(node.output(0))) {
      for (Value output : node.outputs()) add_owner(output);
    } else {
      read_elsewhere(node);
    }
  }

  // ---- what refers to what ----------------------------------------------------------------------

  void add_owner(Value value) {
    const int index = static_cast<int>(owners_.size());
    owners_.push_back({value});
    owners_.back().is_refused = refused_.count(index) != 0;
    track(value, Tracked::Form::kWhole, {{index, 0}});
  }

  void track(Value value, Tracked::Form form, std::vector<Part> parts) {
    if (!parts.empty() && may_hold_tensor(*value.type()))
      tracked_[value] = {form, std::move(parts)};
  }

  [[nodiscard]] const Tracked* find(Value value) const {
    const auto it = tracked_.find(value);
    return it == tracked_.end() ? nullptr : &it->second;
  }

  template <typename Values>
  [[nodiscard]] std::vector<Part> parts_of(const Values& values) const {
    std::vector<Part> parts;
    for (Value value : values) {
      const Tracked* tracked = find(value);
      if (tracked != nullptr) {
        parts.insert(parts.end(), tracked->parts.begin(), tracked->parts.end());
      }
    }
    return parts;
  }

  void refuse(Value value) {
    if (const Tracked* tracked = find(value)) {
      for (const Part& part : tracked->parts) owners_[part.owner].is_refused = true;
    }
  }

  void refuse_captured(Block block) {
    for (Node node : block.nodes()) {
      for (Value input : node.inputs()) refuse(input);
      for (const Block inner : node.blocks()) refuse_captured(inner);
    }
    for (Value output : block.outputs()) refuse(output);
  }

  void make_views(Node node) {
    const Tracked* source = find(node.input(0));
    if (source == nullptr) return;
    const bool is_sure =
        source->form == Tracked::Form::kWhole || source->form == Tracked::Form::kView;
    const auto form = is_sure ? Tracked::Form::kView : Tracked::Form::kUnsure;
    const std::vector<Part> parts = source->parts;
    for (Value output : node.outputs()) track(output, form, parts);
  }

  // An op that is not listed. If its schema says that it writes or returns an argument's memory,
  // the argument is refused. Otherwise its result may still be its argument, as that of type_as.
  void read_elsewhere(Node node) {
    const c10::FunctionSchema* schema = node.schema();
    for (std::size_t i = 0; i < node.input_count(); ++i) {
      const bool is_known = schema != nullptr && i < schema->arguments().size();
      const c10::AliasInfo* alias = is_known ? schema->arguments()[i].alias_info() : nullptr;
      const bool is_view = alias != nullptr && !alias->isWrite();
      if (!is_known || (alias != nullptr && !is_view)) refuse(node.input(i));
    }
    const std::vector<Part> parts = parts_of(node.inputs());
    for (Value output : node.outputs()) track(output, Tracked::Form::kUnsure, parts);
  }

  // ---- changes ----------------------------------------------------------------------------------

  // A change through a view makes a new value for the view. What else refers to the owner's memory
  // cannot be made again then, unless it is made from this view.
  void change(Node node) {
    const Value target = node.input(0);
    const Tracked* tracked = find(target);
    if (tracked == nullptr) return;
    const Tracked::Form form = tracked->form;
    const int index = tracked->parts[0].owner;
    const bool is_tensor_of_owner = form == Tracked::Form::kWhole || form == Tracked::Form::kView;
    if (!is_tensor_of_owner || (!rewrites_ && !has_equal_twin(node))) {
      refuse(target);
      return;
    }
    Owner& owner = owners_[index];
    owner.is_changed = true;
    ++owner.version;
    Value result = node.output();
    if (rewrites_ && !owner.is_refused) {
      std::string_view kind = node.kind();
      kind.remove_suffix(1);
      result = node.renamed(kind).output();
    }
    track(result, form, {{index, owner.version}});
    if (form == Tracked::Form::kWhole) {
      owner.current = result;
    } else {
      owner.is_part_changed = true;
      newer_[target] = result;
    }
  }

  // Returns true if the op without the underscore gives the same type. An in-place sum of f32 and
  // f64 stays f32, and the functional one is f64. A tensor without dimensions changes no type.
  [[nodiscard]] bool has_equal_twin(Node node) const {
    const auto self = seen_.find(node.input(0));
    if (self == seen_.end() || !at::isFloatingType(self->second.scalar_type)) return false;
    const bool has_other = node.input_count() > 1 && is_tensor(node.input(1));
    if (!has_other) return true;
    if (const std::optional<at::Tensor> constant = constant_tensor(node.input(1))) {
      return constant->scalar_type() == self->second.scalar_type ||
             (constant->dim() == 0 && !constant->is_complex());
    }
    const auto other = seen_.find(node.input(1));
    return other != seen_.end() && other->second.scalar_type == self->second.scalar_type;
  }

  // ---- reads after a change ---------------------------------------------------------------------

  [[nodiscard]] bool is_stale(const Tracked& tracked) const {
    return std::any_of(tracked.parts.begin(), tracked.parts.end(), [&](const Part& part) {
      return owners_[part.owner].version > part.version;
    });
  }

  void use_inputs(Node node) {
    for (std::size_t i = 0; i < node.input_count(); ++i) {
      const Value value = node.input(i);
      const Tracked* tracked = find(value);
      if (tracked == nullptr || !is_stale(*tracked)) continue;
      if (!rewrites_) {
        check_stale(value);
      } else if (const Value now = present(value, node); now != value) {
        node.replace_input(i, now);
      }
    }
  }

  // Refuses the owners of a stale value if it cannot be made again.
  void check_stale(Value value) {
    value = newest(value);
    const Tracked* tracked = find(value);
    if (tracked == nullptr || !is_stale(*tracked)) return;
    if (tracked->form == Tracked::Form::kWhole) {
      if (owners_[tracked->parts[0].owner].is_part_changed) refuse(value);
    } else if (is_any(value.node(), kViews) || is_container(value.node())) {
      if (tracked->form == Tracked::Form::kUnsure) refuse(value);
      for (Value input : value.node().inputs()) check_stale(input);
    } else {
      refuse(value);
    }
  }

  [[nodiscard]] Value newest(Value value) const {
    for (auto it = newer_.find(value); it != newer_.end(); it = newer_.find(value)) {
      value = it->second;
    }
    return value;
  }

  // Returns the value with its present contents, which is made again before `reader` if need be.
  Value present(Value value, Node reader) {
    value = newest(value);
    const Tracked* tracked = find(value);
    if (tracked == nullptr || !is_stale(*tracked)) return value;
    const Owner& owner = owners_[tracked->parts[0].owner];
    if (tracked->form == Tracked::Form::kUnsure) return value;
    if (tracked->form != Tracked::Form::kContainer && owner.is_refused) return value;
    if (tracked->form == Tracked::Form::kWhole) return owner.current;
    const Node node = value.node();
    const std::vector<Value> old = node.inputs();
    std::vector<Value> inputs;
    for (const Value input : old) inputs.push_back(present(input, reader));
    if (inputs == old) return value;
    const Node clone = script::Builder(reader).copy(node, inputs);
    for (std::size_t i = 0; i < node.output_count(); ++i) {
      Tracked renewed = *find(node.output(i));
      for (Part& part : renewed.parts) part.version = owners_[part.owner].version;
      tracked_[clone.output(i)] = renewed;
      newer_[node.output(i)] = clone.output(i);
    }
    return newer_.at(value);
  }

  const Graph& graph_;
  const SeenTensors& seen_;
  bool rewrites_ = false;
  std::vector<Owner> owners_;
  std::unordered_set<int> refused_;
  std::unordered_map<Value, Tracked> tracked_;
  std::unordered_map<Value, Value> newer_;  // the value that took the place of another
};

}  // namespace

bool functionalize(const Graph& graph, const SeenTensors& seen) {
  if (!Functionalizer(graph, seen).run()) return false;
  graph.remove_dead_code();
  return true;
}

}  // namespace torchalgo
