// SPDX-License-Identifier: BSD-3-Clause
#include "runner/graph_runner.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "ops/op_times.h"
#include "ops/script_classes.h"

namespace torchalgo {
namespace {

using torch::jit::Node;
using torch::jit::Value;

// The place of a value: index >= 0 among the values of a run, ~index among the constants.
using Place = int;
constexpr bool is_constant(Place place) { return place < 0; }

// The inputs of a planned op. `src` and `packed` are the first two.
struct Form {
  bool takes_list = false;      // src is Tensor[]
  std::optional<int> residual;  // input; nullopt: the list's last, if the op adds one
  std::optional<int> channel;   // input, behind the buffer to write into
  std::optional<int> size;      // input: height and width of the result
};

// Returns the inputs of a planned op, or nullopt for other ops. ops/register.cpp has their schemas.
std::optional<Form> form_of(const Node& node) {
  const c10::FunctionSchema* const schema = node.maybeSchema();
  const bool is_planned = schema != nullptr && schema->name().starts_with("torchalgo::") &&
                          schema->arguments().size() >= 2 &&
                          schema->arguments()[1].name() == "packed";
  if (!is_planned) return std::nullopt;
  return Form{schema->arguments()[0].type()->kind() == c10::TypeKind::ListType,
              schema->argumentIndexWithName("residual"), schema->argumentIndexWithName("channel"),
              schema->argumentIndexWithName("size")};
}

struct Instruction {
  enum class Kind : std::uint8_t { kPlanned, kOther, kList, kTuple, kUnpackedList };
  Kind kind = Kind::kOther;
  std::vector<Place> src;
  Place first_result = 0;
  int results = 1;
  int node = -1;                 // its position in the graph
  std::vector<Place> last_uses;  // values that no later instruction reads
  // These are for a planned op, whose object is among the constants.
  const PlannedOp* op = nullptr;
  std::optional<Place> residual;
  std::optional<Place> buffer;
  std::int64_t channel = 0;
  std::optional<Place> size;
  c10::TypePtr element;  // of a list
  mutable std::optional<torch::jit::Operation>
      other;  // operator() is not const, but changes nothing
};

bool is_plain(const at::Tensor& tensor) {
  // The autocast key has no effect unless autocast is on.
  constexpr c10::DispatchKeySet kKnown({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView,
                                        c10::DispatchKey::AutogradCPU,
                                        c10::DispatchKey::AutocastCPU});
  return tensor.defined() && tensor.is_cpu() && kKnown.isSupersetOf(tensor.key_set()) &&
         !(tensor.requires_grad() && at::GradMode::is_enabled()) &&
         !tensor._fw_grad(/*level=*/0).defined();
}

bool is_plain_call(const std::vector<at::Tensor>& inputs) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const bool has_autocast = !keys.excluded_.has(c10::DispatchKey::AutocastCPU);
  return !at::hasCallbacks() && !has_autocast &&
         c10::default_included_set.isSupersetOf(keys.included_) &&
         std::all_of(inputs.begin(), inputs.end(), is_plain);
}

}  // namespace

struct GraphSteps {
  std::vector<c10::IValue> constants;
  std::vector<Instruction> instructions;
  int inputs = 0;  // the first values
  int values = 0;
  Place result = 0;
};

namespace {

// Returns true if no op keeps or changes the value. Only then may all runs share a constant.
bool is_only_read(const Value& value) {
  return std::all_of(value.uses().begin(), value.uses().end(), [](const torch::jit::Use& use) {
    const c10::FunctionSchema* const schema = use.user->maybeSchema();
    return schema != nullptr && use.offset < schema->arguments().size() &&
           schema->arguments()[use.offset].alias_info() == nullptr;
  });
}

// Reads a graph into instructions.
class StepReader {
 public:
  explicit StepReader(const torch::jit::Module& module)
      : graph_(module.get_method("forward").graph()) {
    const auto inputs = graph_->inputs();
    places_[inputs[0]] = add_constant(module._ivalue());
    for (std::size_t i = 1; i < inputs.size(); ++i) places_[inputs[i]] = read_.values++;
    read_.inputs = read_.values;
  }

  std::unique_ptr<const GraphSteps> read() {
    for (Node* const node : graph_->nodes()) {
      if (!read_node(*node)) return nullptr;
      ++position_;
    }
    const bool has_planned = std::any_of(
        read_.instructions.begin(), read_.instructions.end(),
        [](const Instruction& each) { return each.kind == Instruction::Kind::kPlanned; });
    const auto outputs = graph_->outputs();
    const bool has_gradients =
        std::any_of(read_.constants.begin(), read_.constants.end(), [](const c10::IValue& value) {
          return value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
        });
    if (!takes_tensors() || !has_planned || has_gradients || outputs.size() != 1) return nullptr;
    const auto result = places_.find(outputs[0]);
    if (result == places_.end()) return nullptr;
    read_.result = result->second;
    find_last_uses();
    return std::make_unique<const GraphSteps>(std::move(read_));
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
        return type && !type->schema() && add_instruction(Instruction::Kind::kTuple, node);
      }
      case c10::prim::ListUnpack:
        return add_instruction(Instruction::Kind::kUnpackedList, node);
      default:
        break;
    }
    if (const auto form = form_of(node)) return read_planned(node, *form);
    const torch::jit::Operator* const known = node.maybeOperator();
    if (known == nullptr) return false;
    // The interpreter passes the number of arguments to a vararg op. A chunk takes one argument.
    const bool is_chunk = node.kind() == c10::prim::ConstantChunk;
    if (!is_chunk && (node.hasAttributes() || known->schema().is_vararg())) return false;
    if (!add_instruction(Instruction::Kind::kOther, node)) return false;
    read_.instructions.back().other = known->getOperation(&node);
    return true;
  }

  bool add_instruction(Instruction::Kind kind, const Node& node) {
    Instruction instruction;
    instruction.kind = kind;
    for (const Value* const input : node.inputs()) {
      const auto place = places_.find(input);
      if (place == places_.end()) return false;
      instruction.src.push_back(place->second);
    }
    add_results(instruction, node);
    return true;
  }

  void add_results(Instruction& instruction, const Node& node) {
    instruction.first_result = read_.values;
    instruction.results = static_cast<int>(node.outputs().size());
    instruction.node = position_;
    for (const Value* const output : node.outputs()) places_[output] = read_.values++;
    read_.instructions.push_back(std::move(instruction));
  }

  // Reads a list. Planned ops take its elements, so it needs no instruction. A list of constants
  // becomes a constant if no op changes it.
  bool read_list(const Node& node) {
    const auto inputs = node.inputs();
    const auto& uses = node.output()->uses();
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
    const bool is_for_planned = std::all_of(uses.begin(), uses.end(), [](const auto& use) {
      const auto form = form_of(*use.user);
      return form && form->takes_list && use.offset == 0;
    });
    if (!is_for_planned || uses.empty()) {
      if (!add_instruction(Instruction::Kind::kList, node)) return false;
      read_.instructions.back().element = element;
      return true;
    }
    std::vector<Place>& elements = lists_[node.output()];
    for (const Value* const input : inputs) {
      const auto place = places_.find(input);
      if (place == places_.end()) return false;
      elements.push_back(place->second);
    }
    return true;
  }

  bool read_planned(const Node& node, const Form& form) {
    Instruction instruction;
    instruction.kind = Instruction::Kind::kPlanned;
    const c10::IValue* const packed = constant(node.input(1));
    if (packed == nullptr) return false;
    instruction.op = find_planned_op(*packed);
    if (instruction.op == nullptr) return false;
    if (form.takes_list) {
      const auto list = lists_.find(node.input(0));
      if (list == lists_.end()) return false;
      instruction.src = list->second;
      if (instruction.op->has_residual() && !instruction.src.empty()) {
        instruction.residual = instruction.src.back();
        instruction.src.pop_back();
      }
    } else {
      instruction.src = {places_.at(node.input(0))};
    }
    if (form.residual) {
      const c10::IValue* const none = constant(node.input(*form.residual));
      if (none == nullptr || !none->isNone())
        instruction.residual = places_.at(node.input(*form.residual));
    }
    if (form.channel) {
      const c10::IValue* const channel = constant(node.input(*form.channel));
      if (channel == nullptr || !channel->isInt()) return false;
      instruction.buffer = places_.at(node.input(*form.channel - 1));
      instruction.channel = channel->toInt();
    }
    if (form.size) instruction.size = places_.at(node.input(*form.size));
    add_results(instruction, node);
    return true;
  }

  void find_last_uses() {
    std::vector<bool> is_used(static_cast<std::size_t>(read_.values), false);
    const auto use = [&](Instruction& instruction, Place place) {
      if (is_constant(place) || is_used[place]) return;
      is_used[place] = true;
      instruction.last_uses.push_back(place);
    };
    if (!is_constant(read_.result)) is_used[read_.result] = true;
    for (auto instruction = read_.instructions.rbegin(); instruction != read_.instructions.rend();
         ++instruction) {
      for (int i = 0; i < instruction->results; ++i)
        use(*instruction, instruction->first_result + i);
      for (const Place place : instruction->src) use(*instruction, place);
      for (const auto& place : {instruction->residual, instruction->buffer, instruction->size}) {
        if (place) use(*instruction, *place);
      }
    }
  }

  std::shared_ptr<torch::jit::Graph> graph_;
  GraphSteps read_;
  int position_ = 0;  // of the node that is read
  std::unordered_map<const Value*, Place> places_;
  std::unordered_map<const Value*, std::vector<Place>> lists_;
};

// The values of one run.
class Run {
 public:
  Run(const GraphSteps& steps, std::vector<at::Tensor> inputs)
      : steps_(steps), values_(static_cast<std::size_t>(steps.values)) {
    std::move(inputs.begin(), inputs.end(), values_.begin());
  }

  c10::IValue all() {
    const bool is_timed = is_op_timing();
    for (const Instruction& instruction : steps_.instructions) {
      if (is_timed) [[unlikely]]
        run_timed(instruction);
      else
        run(instruction);
      for (const Place place : instruction.last_uses) values_[place] = c10::IValue();
    }
    return at(steps_.result);
  }

 private:
  [[nodiscard]] const c10::IValue& at(Place place) const {
    return is_constant(place) ? steps_.constants[~place] : values_[place];
  }

  void run_timed(const Instruction& instruction) {
    if (instruction.kind == Instruction::Kind::kPlanned) return run(instruction);  // times itself
    const std::int64_t start_ns = steady_now_ns();
    run(instruction);
    record_op_time({{}, {}, start_ns, steady_now_ns(), instruction.node});
  }

  void run(const Instruction& instruction) {
    switch (instruction.kind) {
      case Instruction::Kind::kPlanned:
        values_[instruction.first_result] = run_planned(instruction);
        return;
      case Instruction::Kind::kOther:
        return run_other(instruction);
      case Instruction::Kind::kList: {
        c10::impl::GenericList list(instruction.element);
        for (const Place place : instruction.src) list.push_back(at(place));
        values_[instruction.first_result] = std::move(list);
        return;
      }
      case Instruction::Kind::kTuple: {
        std::vector<c10::IValue> elements;
        for (const Place place : instruction.src) elements.push_back(at(place));
        values_[instruction.first_result] = c10::ivalue::Tuple::create(std::move(elements));
        return;
      }
      case Instruction::Kind::kUnpackedList: {
        const c10::ArrayRef<c10::IValue> elements = at(instruction.src[0]).toListRef();
        TORCH_CHECK(static_cast<int>(elements.size()) == instruction.results, "a list has ",
                    elements.size(), " elements, expected ", instruction.results);
        std::copy(elements.begin(), elements.end(), values_.begin() + instruction.first_result);
        return;
      }
    }
  }

  at::Tensor run_planned(const Instruction& instruction) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor residual =
        instruction.residual ? at(*instruction.residual).toTensor() : at::Tensor();
    std::optional<Slot> slot;
    if (instruction.buffer) slot = Slot{at(*instruction.buffer).toTensor(), instruction.channel};
    const Slot* const place = slot ? &*slot : nullptr;
    std::vector<std::int64_t> size;
    if (instruction.size) size = at(*instruction.size).toIntVector();
    if (instruction.src.size() == 1)
      return instruction.op->run({&at(instruction.src[0]).toTensor(), 1}, residual, place, size);
    std::vector<at::Tensor> src;
    src.reserve(instruction.src.size());
    for (const Place input : instruction.src) src.push_back(at(input).toTensor());
    return instruction.op->run(src, residual, place);
  }

  void run_other(const Instruction& instruction) {
    torch::jit::Stack stack;
    stack.reserve(instruction.src.size());
    for (const Place place : instruction.src) stack.push_back(at(place));
    (*instruction.other)(stack);
    std::move(stack.begin(), stack.end(), values_.begin() + instruction.first_result);
  }

  const GraphSteps& steps_;
  std::vector<c10::IValue> values_;
};

}  // namespace

GraphRunner::GraphRunner(std::unique_ptr<const GraphSteps> steps, std::vector<PlannedInput> planned)
    : steps_(std::move(steps)), planned_(std::move(planned)) {}
GraphRunner::~GraphRunner() = default;

std::shared_ptr<const GraphRunner> GraphRunner::make(const torch::jit::Module& module,
                                                     std::vector<PlannedInput> planned) {
  std::unique_ptr<const GraphSteps> steps = StepReader(module).read();
  if (steps == nullptr) return nullptr;
  return std::shared_ptr<const GraphRunner>(new GraphRunner(std::move(steps), std::move(planned)));
}

std::optional<c10::IValue> GraphRunner::run(std::vector<at::Tensor> inputs) const {
  if (static_cast<int>(inputs.size()) != steps_->inputs || !is_plain_call(inputs))
    return std::nullopt;
  return Run(*steps_, std::move(inputs)).all();
}

std::optional<c10::IValue> GraphRunner::run_planned(std::vector<at::Tensor> inputs) const {
  const auto is_planned = [](const at::Tensor& input, const PlannedInput& planned) {
    return input.defined() && input.scalar_type() == planned.dtype &&
           input.sizes() == at::IntArrayRef(planned.sizes);
  };
  if (!std::equal(inputs.begin(), inputs.end(), planned_.begin(), planned_.end(), is_planned))
    return std::nullopt;
  return run(std::move(inputs));
}

}  // namespace torchalgo
