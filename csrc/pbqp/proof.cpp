// SPDX-License-Identifier: BSD-3-Clause
#include "pbqp/proof.h"

#include <stdexcept>
#include <utility>

namespace torchalgo::pbqp {
namespace {

using Kind = ProofStep::Kind;

void append(std::string& text, Cost number) {
  text += ' ';
  text += std::to_string(number);
}

void append_nodes(const std::vector<Cost>& numbers, std::size_t count, const ProofNames& names,
                  std::string& text) {
  for (std::size_t i = 0; i < count; ++i) append(text, names.nodes[numbers[i]]);
}

/// " node:value,value"
void append_list(const std::vector<Cost>& numbers, const ProofNames& names, std::string& text) {
  append(text, names.nodes[numbers[0]]);
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    text += i == 1 ? ':' : ',';
    text += std::to_string(names.values[numbers[0]][numbers[i]]);
  }
}

void write_step(const ProofStep& step, const ProofNames& names, std::string& text) {
  const std::vector<Cost>& numbers = step.numbers;
  switch (step.kind) {
    case Kind::kEliminate:
      text += "eliminate";
      append_nodes(numbers, numbers.size(), names, text);
      break;
    case Kind::kDrop:
      text += "drop";
      append_nodes(numbers, 1, names, text);
      for (std::size_t i = 1; i < numbers.size(); ++i)
        append(text, names.values[numbers[0]][numbers[i]]);
      break;
    case Kind::kMove:
      text += "move";
      append_nodes(numbers, 2, names, text);
      for (std::size_t i = 2; i < numbers.size(); ++i) append(text, numbers[i]);
      break;
    case Kind::kExclude:
      text += "exclude";
      append_list(numbers, names, text);
      break;
    case Kind::kRestart:
      text += "restart";
      break;
    case Kind::kClose:
    case Kind::kConfine:
      throw std::logic_error("pbqp: a step that only write_proof can write");
  }
  text += '\n';
}

/// True if the steps reach `bound` themselves, so that no branch is needed.
bool write_until_closed(const ProofSteps& steps, Cost bound, const ProofNames& names,
                        std::string& text) {
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const ProofStep& step = steps[s];
    if (step.kind == Kind::kClose || step.kind == Kind::kConfine) {
      const bool is_reached = step.numbers[0] >= bound;
      const std::size_t own =
          step.kind == Kind::kConfine ? static_cast<std::size_t>(step.numbers[1]) : 0;
      for (std::size_t i = 1; is_reached && i <= own; ++i) write_step(steps[s + i], names, text);
      s += own;
      if (!is_reached) continue;
      text += "close\n";
      return true;
    }
    write_step(step, names, text);
  }
  return false;
}

}  // namespace

void write_steps(const ProofSteps& steps, const ProofNames& names, std::string& text) {
  for (const ProofStep& step : steps) write_step(step, names, text);
}

void write_proof(const Proof& proof, Cost bound, const ProofNames& names, std::string& text) {
  std::vector<int> open{0};
  while (!open.empty()) {
    const ProofBlock& block = proof.blocks[open.back()];
    open.pop_back();
    if (write_until_closed(block.steps, bound, names, text)) continue;
    if (block.node < 0) {  // never looked at: its parent's last state proves it
      text += "close\n";
      continue;
    }
    text += "branch";
    append(text, names.nodes[block.node]);
    append(text, names.values[block.node][block.value]);
    text += '\n';
    open.push_back(block.without);
    open.push_back(block.with);
  }
}

void ProofRecorder::add(int block, ProofStep step) {
  if (!is_on()) return;
  room_ -= 1 + static_cast<std::int64_t>(step.numbers.size());
  if (is_on())
    proof_.blocks[block].steps.push_back(std::move(step));
  else
    proof_ = {};
}

void ProofRecorder::branch(int block, int node, int value, int with, int without) {
  if (!is_on()) return;
  ProofBlock& parent = proof_.blocks[block];
  parent.node = node;
  parent.value = value;
  parent.with = with;
  parent.without = without;
}

}  // namespace torchalgo::pbqp
