// SPDX-License-Identifier: BSD-3-Clause
#include "write/runtime/network.h"

#include <array>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#if defined(__unix__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "base/error.h"
#include "write/content_hash.h"

namespace torchalgo::emitted {
namespace {

constexpr std::size_t kMostInputs = 128;
constexpr std::size_t kMostLayers = 16;
constexpr std::uintptr_t kAlignment = 64;

bool is_aligned(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kAlignment == 0;
}

/// The pointers of one call.
struct Call {
  const float* const* inputs;
  float* const* outputs;
  char* arena;

  [[nodiscard]] char* writable(const Place& place) const {
    switch (place.memory) {
      case Memory::kOutput:
        return reinterpret_cast<char*>(outputs[place.index]) + place.offset;
      case Memory::kArena:
        return arena + place.offset;
      default:
        return nullptr;
    }
  }
  [[nodiscard]] const float* readable(const Place& place) const {
    if (place.memory != Memory::kInput) return reinterpret_cast<const float*>(writable(place));
    return reinterpret_cast<const float*>(reinterpret_cast<const char*>(inputs[place.index]) +
                                          place.offset);
  }
};

void run_step(const Step& step, const cpu::PlainKernel& kernel, const char* weights,
              const Call& call, const cpu::Threads& threads) {
  std::array<const float*, kMostInputs> src;
  for (std::size_t i = 0; i < step.src.size(); ++i) src[i] = call.readable(step.src[i]);
  std::array<cpu::LayerPointers, kMostLayers> layers = {};
  const auto constant = [&](std::int64_t at) {
    return at < 0 ? nullptr : reinterpret_cast<const float*>(weights + at);
  };
  for (std::size_t i = 0; i < step.layers.size(); ++i)
    layers[i] = {constant(step.layers[i].weights), constant(step.layers[i].bias)};
  kernel.run({.src = {src.data(), step.src.size()},
              .weights = {layers.data(), std::max<std::size_t>(1, step.layers.size())},
              .residual = call.readable(step.residual),
              .dst = reinterpret_cast<float*>(call.writable(step.dst)),
              .workspace = call.writable(step.workspace)},
             threads);
}

}  // namespace

Network::~Network() {
#if defined(__unix__)
  if (mapped != nullptr) munmap(mapped, static_cast<std::size_t>(program->weight_bytes));
#endif
}

cpu::PlainKernel bind_step(const Algorithms& algorithms, const char* primitive, const char* problem,
                           Layout src, Layout dst, const Device& device) {
  const Algorithm* const algorithm = find_algorithm(algorithms, primitive);
  TORCHALGO_ASSERT(algorithm != nullptr);
  return algorithm->bind(parse_problem(problem), {primitive, src, dst}, device);
}

int open_memory(const Program& program, Network& network, const void* weights, std::size_t bytes) {
  if (!program.runs_here()) return kOtherCpu;
  if (bytes > 0 && !is_aligned(weights)) return kBadArgument;
  if (bytes != static_cast<std::size_t>(program.weight_bytes) ||
      content_hash(weights, bytes) != program.weight_hash)
    return kOtherWeights;
  network.program = &program;
  network.weights = static_cast<const char*>(weights);
  try {
    for (const Step& step : program.steps) {
      TORCHALGO_ASSERT(step.src.size() <= kMostInputs && step.layers.size() <= kMostLayers);
      network.kernels.push_back(step.bind());
    }
  } catch (const std::exception&) {
    return kNoMemory;
  }
  return kOk;
}

int open_file(const Program& program, Network& network, const char* path) {
#if defined(__unix__)
  const auto bytes = static_cast<std::size_t>(program.weight_bytes);
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return kNoFile;
  struct stat facts = {};
  const bool has_size = fstat(file, &facts) == 0 && facts.st_size == program.weight_bytes;
  void* const mapped = has_size && bytes > 0
                           ? mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0)
                           : nullptr;
  close(file);
  if (!has_size) return kOtherWeights;
  if (mapped == MAP_FAILED) return kNoMemory;
  network.program = &program;
  network.mapped = mapped;
  return open_memory(program, network, mapped, bytes);
#else
  return kNoFile;
#endif
}

int run(const Network& network, const float* const* inputs, float* const* outputs, void* arena,
        const cpu::Threads& threads) {
  if (inputs == nullptr || outputs == nullptr || !is_aligned(arena)) return kBadArgument;
  const Call call = {inputs, outputs, static_cast<char*>(arena)};
  const Program& program = *network.program;
  for (std::size_t i = 0; i < program.steps.size(); ++i)
    run_step(program.steps[i], network.kernels[i], network.weights, call, threads);
  for (const Copy& copy : program.copies) {
    std::memcpy(call.writable(copy.to), call.readable(copy.from),
                static_cast<std::size_t>(copy.bytes));
  }
  return kOk;
}

}  // namespace torchalgo::emitted
