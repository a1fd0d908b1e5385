// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/algorithm.h"
#include "ir/plain_kernel.h"
#include "ir/problem.h"

// Runs the steps of a network whose tables the generated file holds.

namespace torchalgo::emitted {

enum class Memory : std::uint8_t { kNone, kInput, kOutput, kArena };

/// The place of a tensor.
struct Place {
  Memory memory = Memory::kNone;
  int index = 0;            // of an input or output
  std::int64_t offset = 0;  // bytes
};

struct Step {
  cpu::PlainKernel (*bind)(const Problem& problem);
  Problem (*problem)();
  std::span<const Place> src;
  Place residual, dst, workspace;
  std::int64_t workspace_bytes = 0;
};

/// Bytes of the arena that are copied to an output at the end, or of an input.
struct Copy {
  Place from, to;
  std::int64_t bytes = 0;
};

struct Program {
  std::span<const Step> steps;
  std::span<const Copy> copies;
  std::size_t weight_bytes = 0;
  std::uint64_t weight_hash = 0;  // content_hash()
  bool is_packed = true;          // else weights are those of the model, and opening packs them
};

enum Status : int { kOk, kNoFile, kOtherWeights, kOtherCpu, kNoMemory, kBadArgument, kFault };

/// A step with its kernel and its constants.
struct BoundStep {
  cpu::PlainKernel kernel;
  std::vector<cpu::LayerPointers> constants;
};

/// A program with its weights, ready to run. It does not change, so several threads may run it at
/// once, with an arena each.
struct Network {
  const Program* program = nullptr;
  std::vector<BoundStep> steps;
  void* mapped = nullptr;  // the file of weights
  char* packed = nullptr;  // what opening has packed

  Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network();
};

/// Maps the file of weights, checks it, and prepares the steps. Throws nothing.
[[nodiscard]] int open_file(const Program& program, Network& network, const char* path);

/// Does the same with weights in memory, at a multiple of 64 bytes, which must outlive the network.
[[nodiscard]] int open_memory(const Program& program, Network& network, const void* weights,
                              std::size_t bytes);

/// Runs the steps. `arena` is at a multiple of 64 bytes. Allocates and throws nothing.
[[nodiscard]] int run(const Network& network, const float* const* inputs, float* const* outputs,
                      void* arena, const cpu::Threads& threads);

/// Asks Linux for the tiles of AMX. Returns false if this CPU or system has none.
[[nodiscard]] bool ask_for_tiles();

/// Binds a step by the name of its primitive.
[[nodiscard]] cpu::PlainKernel bind_step(const Algorithms& algorithms, const char* primitive,
                                         const Problem& problem, Layout src, Layout dst,
                                         const Device& device);
[[nodiscard]] inline cpu::PlainKernel bind_step(Algorithm algorithm, const char* primitive,
                                                const Problem& problem, Layout src, Layout dst,
                                                const Device& device) {
  return bind_step(Algorithms{std::move(algorithm)}, primitive, problem, src, dst, device);
}

}  // namespace torchalgo::emitted
