// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "pbqp/problem.h"

namespace torchalgo::pbqp {

/// One step of a proof that no choice is cheaper than some bound. A step changes a state, which is
/// the tables and values that are left. If a choice is cheaper than the bound, the state keeps it
/// or one that costs no more.
struct ProofStep {
  enum class Kind : std::uint8_t {
    kEliminate,  // nodes...: each is minimised out of the sum of the tables that hold it
    kDrop,       // node, a, b, a, b...: value a is dropped, because b never costs more
    kMove,       // u, v, costs per value left of u, per value left of v: from their table to them
    kExclude,    // node, values...: their bounds reach the bound to be proven; a restart removes
                 // them
    kRestart,    // back to the first tables, with the values not yet excluded or branched away
    kClose,      // bound, which is proven here
    kConfine,    // bound, count: alternative ending; the next `count` steps, which prove this bound
  };
  Kind kind;
  std::vector<Cost> numbers;
};

using ProofSteps = std::vector<ProofStep>;

/// A part of a proof, which may branch. Both children start again from the first tables, unless
/// they begin with a kClose. Such a kClose has the bound that the last state of their parent
/// proves.
struct ProofBlock {
  ProofSteps steps;
  int node = -1, value = -1;    // branched on; -1 if it does not branch
  int with = -1, without = -1;  // blocks in which the node takes the value, or not
};

/// A proof. blocks[0] is the root. It has no blocks if there was no room for it.
struct Proof {
  std::vector<ProofBlock> blocks;
};

/// The names of a proof's nodes and values in the original problem.
struct ProofNames {
  std::vector<int> nodes;
  std::vector<std::vector<int>> values;
};

/// Adds the lines of `steps`, which hold no kClose or kConfine.
void write_steps(const ProofSteps& steps, const ProofNames& names, std::string& text);

/// Adds the lines that prove `bound` (not above the one that the proof was made for), depth first.
void write_proof(const Proof& proof, Cost bound, const ProofNames& names, std::string& text);

/// Collects a proof. If its numbers exceed `room`, the proof is dropped.
class ProofRecorder {
 public:
  explicit ProofRecorder(std::int64_t room) : room_(room) {}

  [[nodiscard]] bool is_on() const { return room_ >= 0; }

  int add_block() {
    if (!is_on()) return 0;
    proof_.blocks.emplace_back();
    return static_cast<int>(proof_.blocks.size()) - 1;
  }

  void add(int block, ProofStep step);
  void add(int block, const ProofSteps& steps) {
    for (const ProofStep& step : steps) add(block, step);
  }
  void branch(int block, int node, int value, int with, int without);

  [[nodiscard]] std::int64_t room() const { return room_; }
  [[nodiscard]] Proof take() { return std::move(proof_); }

 private:
  std::int64_t room_;
  Proof proof_;
};

}  // namespace torchalgo::pbqp
