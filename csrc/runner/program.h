// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <torch/csrc/jit/api/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchalgo {

/// The place of a value: index >= 0 among the values of a run, ~index among the constants.
using Place = int;
constexpr bool is_constant(Place place) { return place < 0; }

/// One step of a program.
struct ProgramStep {
  enum class Kind : std::uint8_t { kOp, kList, kTuple, kUnpackedList };
  Kind kind = Kind::kOp;
  c10::OperatorName op{"", ""};  // of kOp
  c10::TypePtr element;          // of kList
  std::vector<Place> src;        // the arguments, in the order of the op's schema
  Place first_result = 0;        // further results follow it
  int results = 1;
  int node = -1;  // its position in the graph from which it was read; -1: it was read from a file
};

/// The forward of an optimized module: a sequence of ops without branches and loops.
struct Program {
  std::vector<c10::IValue> constants;  // numbers, texts, weights, planned ops
  std::vector<ProgramStep> steps;
  int inputs = 0;  // all are tensors; they are the first values
  int values = 0;
  Place result = 0;
};

/// Reads the program of a module's forward. Returns null if forward takes anything but tensors, has
/// several results, or is more than a sequence of ops: if it branches, loops, makes dictionaries or
/// prints. The program shares the module's weights.
[[nodiscard]] std::unique_ptr<Program> read_program(const torch::jit::Module& module);

/// Returns a module whose forward is the program: the opposite of read_program. It shares the
/// program's weights.
/// @param names  of the arguments, one per input of the program.
/// @throws Error  if there are more or fewer names, or if TorchScript cannot call an op as the
///   program does. For a damaged program also torch's errors.
[[nodiscard]] torch::jit::Module module_of(const Program& program,
                                           const std::vector<std::string>& names);

}  // namespace torchalgo
