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
    case Kind::kRestart:
    case Kind::kClose:
    case Kind::kConfine:
      throw std::logic_error("pbqp: a step that only write_proof can write");
  }
  text += '\n';
}

class ProofWriter {
 public:
  ProofWriter(const Proof& proof, Cost bound, const ProofNames& names, std::string& text)
      : proof_(proof), bound_(bound), names_(names), text_(text) {}

  void write() {
    std::vector<int> open{0};
    while (!open.empty()) {
      const ProofBlock& block = proof_.blocks[open.back()];
      open.pop_back();
      if (!write_until_closed(block.steps)) write_children(block, open);
    }
  }

 private:
  /// Writes the children of a block. A branch is written only if both need a proof; a single child
  /// continues in the case of its parent.
  void write_children(const ProofBlock& block, std::vector<int>& open) {
    const bool needs_with = needs_proof(block.with), needs_without = needs_proof(block.without);
    if (needs_without) open.push_back(block.without);
    if (needs_with) open.push_back(block.with);
    if (needs_with && needs_without) {
      restart();
      text_ += "branch";
      append(text_, names_.nodes[block.node]);
      append(text_, names_.values[block.node][block.value]);
      text_ += '\n';
      return;
    }
    if (block.node >= 0 && !needs_with) exclude({block.node, block.value});
    if (block.node >= 0 && !needs_without) exclude(all_but(block.node, block.value));
    if (!needs_with && !needs_without) close();
  }

  /// Writes the steps. Returns true if they reach the bound, so that no branch is needed.
  bool write_until_closed(const ProofSteps& steps) {
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const ProofStep& step = steps[s];
      if (step.kind == Kind::kClose) {
        if (step.numbers[0] < bound_) continue;
        close();
        return true;
      }
      if (step.kind == Kind::kConfine) {
        const auto own = static_cast<std::size_t>(step.numbers[1]);
        if (step.numbers[0] < bound_) {
          s += own;
          continue;
        }
        for (std::size_t i = 1; i <= own; ++i) write(steps[s + i]);
        close();
        return true;
      }
      write(step);
    }
    return false;
  }

  /// Returns true if the block needs a proof of its own, because the last state of its parent does
  /// not prove it.
  bool needs_proof(int block) const {
    if (block < 0) return false;
    const ProofSteps& steps = proof_.blocks[block].steps;
    return steps.empty() || steps[0].kind != Kind::kClose || steps[0].numbers[0] < bound_;
  }

  void write(const ProofStep& step) {
    if (step.kind == Kind::kExclude) {
      exclude(step.numbers);
    } else if (step.kind == Kind::kRestart) {
      restart();
    } else {
      write_step(step, names_, text_);
      is_fresh_ = false;
    }
  }

  /// Adds " node:value,value" to the excluded values. They are written together with all others
  /// that follow from the same state.
  void exclude(const std::vector<Cost>& numbers) {
    append(excluded_, names_.nodes[numbers[0]]);
    for (std::size_t i = 1; i < numbers.size(); ++i) {
      excluded_ += i == 1 ? ':' : ',';
      excluded_ += std::to_string(names_.values[numbers[0]][numbers[i]]);
    }
  }

  std::vector<Cost> all_but(int node, int value) const {
    std::vector<Cost> numbers{node};
    for (int a = 0; a < static_cast<int>(names_.values[node].size()); ++a)
      if (a != value) numbers.push_back(a);
    return numbers;
  }

  void restart() {
    if (!is_fresh_ || !excluded_.empty()) text_ += "exclude" + excluded_ + "\n";
    excluded_.clear();
    is_fresh_ = true;
  }

  void close() {
    if (!excluded_.empty()) restart();
    text_ += "close\n";
    is_fresh_ = true;
  }

  const Proof& proof_;
  const Cost bound_;
  const ProofNames& names_;
  std::string& text_;
  std::string excluded_;  // values that the next restart removes
  bool is_fresh_ = true;  // true if there was no step since the last restart
};

}  // namespace

void write_steps(const ProofSteps& steps, const ProofNames& names, std::string& text) {
  for (const ProofStep& step : steps) write_step(step, names, text);
}

void write_proof(const Proof& proof, Cost bound, const ProofNames& names, std::string& text) {
  ProofWriter(proof, bound, names, text).write();
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
