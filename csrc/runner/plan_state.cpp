// SPDX-License-Identifier: BSD-3-Clause
// The plain data of a plan object in a file.
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "provider/memory.h"
#include "runner/plan_object.h"

namespace torchalgo {
namespace {

constexpr std::int64_t kVersion = 1;

using Sizes = std::vector<std::int64_t>;

template <typename... Values>
c10::IValue tuple(Values&&... values) {
  return c10::ivalue::Tuple::create({c10::IValue(std::forward<Values>(values))...});
}

template <typename Each, typename Write>
c10::IValue tuple_of(const std::vector<Each>& all, Write write) {
  std::vector<c10::IValue> values;
  for (const Each& each : all) values.push_back(write(each));
  return c10::ivalue::Tuple::create(std::move(values));
}

// Returns the type of list elements that a file may name, or null. torch's parser of types crashes
// on some texts.
c10::TypePtr element_named(const std::string& name) {
  const std::array<c10::TypePtr, 6> types = {c10::TensorType::get(), c10::IntType::get(),
                                             c10::FloatType::get(),  c10::BoolType::get(),
                                             c10::StringType::get(), c10::OptionalType::ofTensor()};
  const auto is_named = [&](const c10::TypePtr& type) { return type->annotation_str() == name; };
  const auto found = std::find_if(types.begin(), types.end(), is_named);
  return found == types.end() ? nullptr : *found;
}

c10::IValue write_step(const ProgramStep& step) {
  const std::string element = step.element == nullptr ? "" : step.element->annotation_str();
  TORCHALGO_CHECK(
      element.empty() || element_named(element) != nullptr,
      "TA2003 save: the plan makes a list of {}, which a .pt2 file cannot hold: save it "
      "as a .pt file",
      element);
  return tuple(static_cast<std::int64_t>(step.kind), step.op.name, step.op.overload_name, element,
               Sizes(step.src.begin(), step.src.end()),
               static_cast<std::int64_t>(step.first_result),
               static_cast<std::int64_t>(step.results));
}

c10::IValue write_part(const PlanPart& part) {
  const Program& program = part.runner->program();
  const auto number = [](std::int64_t value) { return value; };
  return tuple(number(program.inputs), number(program.values), number(program.result),
               tuple_of(program.constants, [](const c10::IValue& constant) { return constant; }),
               tuple_of(program.steps, write_step),
               tuple_of(part.runner->planned(),
                        [](const PlannedInput& input) {
                          return tuple(input.sizes, static_cast<std::int64_t>(input.dtype));
                        }),
               tuple_of(part.dims,
                        [](const std::vector<SizeLimits>& dims) {
                          return tuple_of(dims, [](const SizeLimits& limits) {
                            return tuple(limits.variable, limits.least, limits.most);
                          });
                        }),
               tuple_of(part.results, [](const PlannedResult& result) {
                 return tuple(result.sizes, result.strides,
                              static_cast<std::int64_t>(result.dtype));
               }));
}

void check(bool is_right) {
  TORCHALGO_CHECK(is_right,
                  "TA2005 plan: its data was not written by torchalgo: the file is damaged, copy "
                  "or save it again");
}

// All reading functions throw Error if a value has another type, or if a tuple has another size.

c10::ArrayRef<c10::IValue> read_tuple(const c10::IValue& value) {
  check(value.isTuple());
  return value.toTupleRef().elements();
}
c10::ArrayRef<c10::IValue> read_tuple(const c10::IValue& value, std::size_t size) {
  const auto elements = read_tuple(value);
  check(elements.size() == size);
  return elements;
}
std::int64_t read_int(const c10::IValue& value, std::int64_t least, std::int64_t most) {
  check(value.isInt() && value.toInt() >= least && value.toInt() <= most);
  return value.toInt();
}
Sizes read_ints(const c10::IValue& value) {
  check(value.isIntList());
  return value.toIntVector();
}
std::string read_text(const c10::IValue& value) {
  check(value.isString());
  return value.toStringRef();
}
void check_tensors(const c10::IValue& value) {
  if (value.isTensor()) check(lies_in_its_memory(value.toTensor()));
  if (!value.isList()) return;
  for (const c10::IValue& each : value.toListRef()) check_tensors(each);
}
Sizes read_sizes(const c10::IValue& value) {
  Sizes sizes = read_ints(value);
  check(sizes.size() <= 64);
  for (const std::int64_t size : sizes) check(size >= 0);
  return sizes;
}
at::ScalarType read_dtype(const c10::IValue& value) {
  const std::int64_t most = static_cast<std::int64_t>(at::ScalarType::NumOptions) - 1;
  return static_cast<at::ScalarType>(read_int(value, 0, most));
}

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostResults = 4096;  // of one step; a damaged number must not take memory

ProgramStep read_step(const c10::IValue& value) {
  const auto fields = read_tuple(value, 7);
  ProgramStep step;
  step.kind = static_cast<ProgramStep::Kind>(
      read_int(fields[0], 0, static_cast<std::int64_t>(ProgramStep::Kind::kUnpackedList)));
  step.op = {read_text(fields[1]), read_text(fields[2])};
  const std::string element = read_text(fields[3]);
  step.element = element_named(element);
  check(element.empty() || step.element != nullptr);
  check((step.kind == ProgramStep::Kind::kList) == (step.element != nullptr));
  for (const std::int64_t place : read_ints(fields[4])) {
    check(place >= -kMost && place <= kMost);
    step.src.push_back(static_cast<Place>(place));
  }
  check(step.kind != ProgramStep::Kind::kUnpackedList || step.src.size() == 1);
  step.first_result = static_cast<Place>(read_int(fields[5], 0, kMost));
  step.results = static_cast<int>(read_int(fields[6], 0, kMostResults));
  return step;
}

// Checks that each value is computed once, before it is read.
void check_places(const Program& program) {
  std::int64_t known = program.inputs;
  const auto constants = static_cast<std::int64_t>(program.constants.size());
  const auto check_place = [&](Place place) { check(place < known && ~place < constants); };
  for (const ProgramStep& step : program.steps) {
    std::for_each(step.src.begin(), step.src.end(), check_place);
    check(step.first_result == known);
    check(step.kind == ProgramStep::Kind::kOp || step.kind == ProgramStep::Kind::kUnpackedList ||
          step.results == 1);
    known += step.results;
  }
  check(known == program.values);
  check_place(program.result);
}

std::vector<std::vector<SizeLimits>> read_dims(const c10::IValue& value) {
  std::vector<std::vector<SizeLimits>> dims;
  for (const c10::IValue& input : read_tuple(value)) {
    auto& limits = dims.emplace_back();
    for (const c10::IValue& dim : read_tuple(input)) {
      const auto numbers = read_tuple(dim, 3);
      constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
      limits.push_back({read_int(numbers[0], -1, kAny), read_int(numbers[1], 0, kAny),
                        read_int(numbers[2], -1, kAny)});
    }
  }
  return dims;
}

PlanPart read_part(const c10::IValue& value) {
  const auto fields = read_tuple(value, 8);
  auto program = std::make_unique<Program>();
  program->inputs = static_cast<int>(read_int(fields[0], 0, kMost));
  program->values = static_cast<int>(read_int(fields[1], 0, kMost));
  program->result = static_cast<Place>(read_int(fields[2], -kMost, kMost));
  program->constants = read_tuple(fields[3]).vec();
  std::for_each(program->constants.begin(), program->constants.end(), check_tensors);
  for (const c10::IValue& step : read_tuple(fields[4])) program->steps.push_back(read_step(step));
  check_places(*program);
  std::vector<PlannedInput> planned;
  for (const c10::IValue& each : read_tuple(fields[5])) {
    const auto input = read_tuple(each, 2);
    planned.push_back({read_sizes(input[0]), read_dtype(input[1])});
  }
  check(planned.size() == static_cast<std::size_t>(program->inputs));
  PlanPart part;
  part.dims = read_dims(fields[6]);
  for (const c10::IValue& each : read_tuple(fields[7])) {
    const auto result = read_tuple(each, 3);
    part.results.push_back({read_sizes(result[0]), read_sizes(result[1]), read_dtype(result[2])});
    check(part.results.back().sizes.size() == part.results.back().strides.size());
  }
  part.runner = GraphRunner::make(std::move(program), std::move(planned), false);
  check(part.runner != nullptr);
  return part;
}

}  // namespace

c10::IValue PlanObject::state() const {
  return tuple(kVersion, std::string(TORCH_VERSION), tuple_of(parts_, write_part));
}

c10::intrusive_ptr<PlanObject> PlanObject::from_state(const c10::IValue& state) {
  // Another version may have other fields after the first.
  check(state.isTuple() && !state.toTupleRef().elements().empty() &&
        state.toTupleRef().elements()[0].isInt());
  const auto& fields = state.toTupleRef().elements();
  TORCHALGO_CHECK(fields[0].toInt() == kVersion,
                  "TA2008 plan: it was saved in format {}, this torchalgo reads format {}: update "
                  "torchalgo or optimize the model again",
                  fields[0].toInt(), kVersion);
  check(fields.size() == 3);
  std::vector<PlanPart> parts;
  try {
    for (const c10::IValue& part : read_tuple(fields[2])) parts.push_back(read_part(part));
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {  // from torch, which got values that no plan has
    check(false);
  }
  check(have_equal_forms(parts));
  return c10::make_intrusive<PlanObject>(std::move(parts));
}

}  // namespace torchalgo
