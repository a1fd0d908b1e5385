// SPDX-License-Identifier: BSD-3-Clause
#include "runner/graph_runner.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "ops/script_classes.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

// The positions of a planned op's arguments. `src` is the first, `packed` the second.
struct Form {
  bool takes_list = false;  // src is a list of tensors
  std::optional<int>
      residual;                // nullopt: if the op adds a residual, it is the last one of the list
  std::optional<int> channel;  // the argument before it is the buffer to write into
  std::optional<int> size;     // height and width of the result
};

// Returns the inputs of a planned op, or nullopt for other ops. ops/register.cpp has their schemas.
std::optional<Form> form_of(const c10::FunctionSchema& schema) {
  const bool is_planned = schema.name().starts_with("torchalgo::") &&
                          schema.arguments().size() >= 2 &&
                          schema.arguments()[1].name() == "packed";
  if (!is_planned) return std::nullopt;
  return Form{schema.arguments()[0].type()->kind() == c10::TypeKind::ListType,
              schema.argumentIndexWithName("residual"), schema.argumentIndexWithName("channel"),
              schema.argumentIndexWithName("size")};
}

// A step that is ready to run.
struct Instruction {
  enum class Kind : std::uint8_t { kPlanned, kOther, kList, kTuple, kUnpackedList };
  Kind kind = Kind::kOther;
  std::vector<Place> src;
  Place first_result = 0;
  int results = 1;
  int node = -1;                 // its position in the graph
  bool is_planned = false;       // not left to PyTorch
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
  // The autocast keys have no effect unless autocast is on.
  using Key = c10::DispatchKey;
  constexpr c10::DispatchKeySet kKnown({Key::CPU, Key::AutogradCPU, Key::AutocastCPU, Key::CUDA,
                                        Key::AutogradCUDA, Key::AutocastCUDA,
                                        Key::ADInplaceOrView});
  return tensor.defined() && kKnown.isSupersetOf(tensor.key_set()) &&
         !(tensor.requires_grad() && at::GradMode::is_enabled()) &&
         !tensor._fw_grad(/*level=*/0).defined();
}

bool is_plain_call(const std::vector<at::Tensor>& inputs) {
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const auto is_cuda = [](const at::Tensor& input) { return input.defined() && input.is_cuda(); };
  const bool has_autocast =
      !keys.excluded_.has(c10::DispatchKey::AutocastCPU) ||
      (!keys.excluded_.has(c10::DispatchKey::AutocastCUDA) && std::ranges::any_of(inputs, is_cuda));
  return !at::hasCallbacks() && !has_autocast &&
         c10::default_included_set.isSupersetOf(keys.included_) &&
         std::all_of(inputs.begin(), inputs.end(), is_plain);
}

}  // namespace

struct Instructions {
  std::vector<Instruction> list;
  bool has_planned = false;
};

namespace {

// Makes the instructions of a program.
class Preparer {
 public:
  explicit Preparer(const Program& program) : program_(program), operators_(program.steps.size()) {
    for (std::size_t i = 0; i < operators_.size(); ++i) {
      if (program.steps[i].kind == ProgramStep::Kind::kOp)
        operators_[i] = operator_of(program.steps[i]);
    }
    find_lists();
  }

  std::unique_ptr<const Instructions> prepare() {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const ProgramStep& step = program_.steps[i];
      if (!lists_.contains(step.first_result) || step.kind != ProgramStep::Kind::kList)
        prepared_.list.push_back(instruction(step, operators_[i].get()));
    }
    find_last_uses();
    return std::make_unique<const Instructions>(std::move(prepared_));
  }

 private:
  using OperatorPtr = std::shared_ptr<torch::jit::Operator>;

  static OperatorPtr operator_of(const ProgramStep& step) {
    const OperatorPtr found = torch::jit::findOperatorFor(step.op);
    const std::string name = c10::toString(step.op);
    TORCHALGO_CHECK(found != nullptr,
                    "TA2008 plan: this PyTorch has no op {}: optimize the model again with it",
                    name);
    const c10::FunctionSchema& schema = found->schema();
    TORCHALGO_CHECK(!schema.is_vararg() && !schema.is_varret() &&
                        schema.arguments().size() == step.src.size() &&
                        static_cast<int>(schema.returns().size()) == step.results,
                    "TA2008 plan: op {} has {} arguments and {} results in this PyTorch, the plan "
                    "calls it with {} and {}: optimize the model again with it",
                    name, schema.arguments().size(), schema.returns().size(), step.src.size(),
                    step.results);
    return found;
  }

  [[nodiscard]] const c10::IValue* constant(Place place) const {
    return is_constant(place) ? &program_.constants[~place] : nullptr;
  }

  // Finds the lists that only planned ops read. These take the elements, so that the lists need no
  // instruction.
  void find_lists() {
    for (const ProgramStep& step : program_.steps) {
      if (step.kind == ProgramStep::Kind::kList) lists_[step.first_result] = &step;
    }
    lists_.erase(program_.result);
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const ProgramStep& step = program_.steps[i];
      const auto form = operators_[i] ? form_of(operators_[i]->schema()) : std::nullopt;
      const bool takes_elements = form && form->takes_list && direct_op(step, *form) != nullptr;
      for (std::size_t k = 0; k < step.src.size(); ++k) {
        if (k != 0 || !takes_elements) lists_.erase(step.src[k]);
      }
    }
  }

  Instruction instruction(const ProgramStep& step, const torch::jit::Operator* op) {
    Instruction made;
    made.src = step.src;
    made.first_result = step.first_result;
    made.results = step.results;
    made.node = step.node;
    made.element = step.element;
    switch (step.kind) {
      case ProgramStep::Kind::kList:
        made.kind = Instruction::Kind::kList;
        return made;
      case ProgramStep::Kind::kTuple:
        made.kind = Instruction::Kind::kTuple;
        return made;
      case ProgramStep::Kind::kUnpackedList:
        made.kind = Instruction::Kind::kUnpackedList;
        return made;
      case ProgramStep::Kind::kOp:
        break;
    }
    const auto form = form_of(op->schema());
    made.is_planned = form.has_value();
    if (form) prepared_.has_planned = true;
    if (form && read_planned(step, *form, made)) {
      made.kind = Instruction::Kind::kPlanned;
      return made;
    }
    const auto graph = std::make_shared<torch::jit::Graph>();  // its node is without attributes
    made.other = op->getOperation(graph->create(c10::Symbol::fromQualString(step.op.name)));
    return made;
  }

  // Returns the object of a planned op. Returns null if a direct call is not possible.
  [[nodiscard]] const PlannedOp* direct_op(const ProgramStep& step, const Form& form) const {
    if (form.channel) {
      const c10::IValue* const channel = constant(step.src[*form.channel]);
      if (channel == nullptr || !channel->isInt()) return nullptr;
    }
    const c10::IValue* const packed = constant(step.src[1]);
    return packed == nullptr ? nullptr : find_planned_op(*packed);
  }

  // Fills in what a direct call of a planned op needs. Returns false if it needs the dispatcher.
  [[nodiscard]] bool read_planned(const ProgramStep& step, const Form& form,
                                  Instruction& made) const {
    const PlannedOp* const op = direct_op(step, form);
    if (op == nullptr) return false;
    std::vector<Place> src = {step.src[0]};
    std::optional<Place> residual;
    if (form.takes_list) {
      const auto list = lists_.find(step.src[0]);
      if (list == lists_.end()) return false;
      src = list->second->src;
      if (op->has_residual() && !src.empty()) {
        residual = src.back();
        src.pop_back();
      }
    }
    if (form.residual) {
      const Place place = step.src[*form.residual];
      const c10::IValue* const none = constant(place);
      if (none == nullptr || !none->isNone()) residual = place;
    }
    if (form.channel) {
      made.buffer = step.src[*form.channel - 1];
      made.channel = constant(step.src[*form.channel])->toInt();
    }
    if (form.size) made.size = step.src[*form.size];
    made.op = op;
    made.src = std::move(src);
    made.residual = residual;
    return true;
  }

  void find_last_uses() {
    std::vector<bool> is_used(static_cast<std::size_t>(program_.values), false);
    const auto use = [&](Instruction& instruction, Place place) {
      if (is_constant(place) || is_used[place]) return;
      is_used[place] = true;
      instruction.last_uses.push_back(place);
    };
    if (!is_constant(program_.result)) is_used[program_.result] = true;
    for (auto each = prepared_.list.rbegin(); each != prepared_.list.rend(); ++each) {
      for (int i = 0; i < each->results; ++i) use(*each, each->first_result + i);
      for (const Place place : each->src) use(*each, place);
      for (const auto& place : {each->residual, each->buffer, each->size}) {
        if (place) use(*each, *place);
      }
    }
  }

  const Program& program_;
  std::vector<OperatorPtr> operators_;  // null for other steps
  std::unordered_map<Place, const ProgramStep*> lists_;
  Instructions prepared_;
};

// The values of one run.
class Run {
 public:
  Run(const Program& program, const std::vector<c10::IValue>& constants,
      std::vector<at::Tensor> inputs)
      : program_(program),
        constants_(constants),
        values_(static_cast<std::size_t>(program.values)) {
    std::move(inputs.begin(), inputs.end(), values_.begin());
  }

  /// Appends the times of the ops that are left to PyTorch to `times`, unless it is null.
  c10::IValue all(const Instructions& instructions, OpTimes* times = nullptr) {
    for (const Instruction& instruction : instructions.list) {
      const bool is_timed = times != nullptr && !instruction.is_planned;
      const std::int64_t start_ns = is_timed ? steady_now_ns() : 0;
      run(instruction);
      if (is_timed) times->emplace_back(instruction.node, steady_now_ns() - start_ns);
      for (const Place place : instruction.last_uses) values_[place] = c10::IValue();
    }
    return at(program_.result);
  }

 private:
  [[nodiscard]] const c10::IValue& at(Place place) const {
    return is_constant(place) ? constants_[~place] : values_[place];
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
    std::optional<ResultPart> part;
    if (instruction.buffer)
      part = ResultPart{at(*instruction.buffer).toTensor(), instruction.channel};
    const ResultPart* const place = part ? &*part : nullptr;
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
    TORCHALGO_ASSERT(static_cast<int>(stack.size()) == instruction.results);
    std::move(stack.begin(), stack.end(), values_.begin() + instruction.first_result);
  }

  const Program& program_;
  const std::vector<c10::IValue>& constants_;
  std::vector<c10::IValue> values_;
};

}  // namespace

GraphRunner::GraphRunner(std::unique_ptr<const Program> program, std::vector<PlannedInput> planned)
    : program_(std::move(program)),
      planned_(std::move(planned)),
      instructions_(Preparer(*program_).prepare()) {}
GraphRunner::~GraphRunner() = default;

std::shared_ptr<const GraphRunner> GraphRunner::make(std::unique_ptr<const Program> program,
                                                     std::vector<PlannedInput> planned,
                                                     bool needs_planned) {
  if (program == nullptr) return nullptr;
  const auto has_gradient = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad();
  };
  if (std::any_of(program->constants.begin(), program->constants.end(), has_gradient))
    return nullptr;
  const std::shared_ptr<const GraphRunner> made(
      new GraphRunner(std::move(program), std::move(planned)));
  return made->instructions_->has_planned || !needs_planned ? made : nullptr;
}

std::optional<c10::IValue> GraphRunner::run_plain(std::vector<at::Tensor> inputs,
                                                  OpTimes* times) const {
  if (static_cast<int>(inputs.size()) != program_->inputs || !is_plain_call(inputs))
    return std::nullopt;
  return Run(*program_, program_->constants, std::move(inputs)).all(*instructions_, times);
}

std::optional<c10::IValue> GraphRunner::run(std::vector<at::Tensor> inputs) const {
  return run_plain(std::move(inputs), nullptr);
}

std::optional<OpTimes> GraphRunner::time_left_ops(std::vector<at::Tensor> inputs) const {
  // Operations of a GPU go on after their calls.
  if (!std::ranges::all_of(inputs, [](const at::Tensor& input) { return input.is_cpu(); }))
    return std::nullopt;
  OpTimes times;
  if (!run_plain(std::move(inputs), &times)) return std::nullopt;
  return times;
}

std::optional<c10::IValue> GraphRunner::run_planned(std::vector<at::Tensor> inputs) const {
  const auto is_planned = [](const at::Tensor& input, const PlannedInput& planned) {
    return input.defined() && input.scalar_type() == planned.dtype &&
           input.device() == planned.device && input.sizes() == at::IntArrayRef(planned.sizes);
  };
  if (!std::equal(inputs.begin(), inputs.end(), planned_.begin(), planned_.end(), is_planned))
    return std::nullopt;
  return run(std::move(inputs));
}

c10::IValue GraphRunner::run_anywhere(std::vector<at::Tensor> inputs,
                                      const std::vector<c10::IValue>& constants) const {
  TORCHALGO_ASSERT(static_cast<int>(inputs.size()) == program_->inputs &&
                   constants.size() == program_->constants.size());
  return Run(*program_, constants, std::move(inputs)).all(*instructions_);
}

}  // namespace torchalgo
