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
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#endif

#include "base/error.h"
#include "write/constants.h"
#include "write/content_hash.h"

namespace torchalgo::emitted {
namespace {

constexpr std::size_t kMostInputs = 128;

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

void run_step(const Step& step, const BoundStep& bound, const Call& call,
              const cpu::Threads& threads) {
  std::array<const float*, kMostInputs> src;
  for (std::size_t i = 0; i < step.src.size(); ++i) src[i] = call.readable(step.src[i]);
  bound.kernel.run({.src = {src.data(), step.src.size()},
                    .weights = bound.constants,
                    .residual = call.readable(step.residual),
                    .dst = reinterpret_cast<float*>(call.writable(step.dst)),
                    .workspace = call.writable(step.workspace)},
                   threads);
}

void unmap(Network& network) {
#if defined(__unix__)
  if (network.mapped != nullptr) munmap(network.mapped, network.program->weight_bytes);
#endif
  network.mapped = nullptr;
}

// Packs the weights of the model, which `bound` has, into memory of the network.
void pack(Network& network, std::span<const Problem> problems) {
  std::vector<std::vector<cpu::PackedFloats>> floats;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    floats.push_back(kernel_floats(network.steps[i].kernel, problems[i]));
    static_cast<void>(placed_constants(floats[i], nullptr, bytes));
  }
  network.packed = static_cast<char*>(::operator new (bytes, std::align_val_t{kAlignment}));
  std::size_t at = 0;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    BoundStep& step = network.steps[i];
    const auto to = placed_constants(floats[i], network.packed, at);
    write_constants(step.kernel, problems[i], step.constants, to);
    step.constants = for_reading(to);
  }
}

void bind_all(const Program& program, Network& network, char* weights) {
  std::vector<Problem> problems;
  std::size_t at = 0;
  for (const Step& step : program.steps) {
    TORCHALGO_ASSERT(step.src.size() <= kMostInputs);
    const Problem& problem = problems.emplace_back(step.problem());
    BoundStep bound = {step.bind(problem), {}};
    TORCHALGO_ASSERT(bound.kernel.workspace_bytes <= step.workspace_bytes);
    const auto floats =
        program.is_packed ? kernel_floats(bound.kernel, problem) : model_floats(problem);
    bound.constants = for_reading(placed_constants(floats, weights, at));
    network.steps.push_back(std::move(bound));
  }
  TORCHALGO_ASSERT(at == program.weight_bytes);
  if (!program.is_packed) pack(network, problems);
  for (BoundStep& step : network.steps) {
    if (step.constants.empty()) step.constants.emplace_back();  // as RunArgs::weights wants it
  }
}

}  // namespace

Network::~Network() {
  unmap(*this);
  ::operator delete (packed, std::align_val_t{kAlignment});
}

cpu::PlainKernel bind_step(const Algorithms& algorithms, const char* primitive,
                           const Problem& problem, Layout src, Layout dst, const Device& device) {
  const Algorithm* const algorithm = find_algorithm(algorithms, primitive);
  TORCHALGO_ASSERT(algorithm != nullptr);
  return algorithm->bind(problem, {primitive, src, dst}, device);
}

bool ask_for_tiles() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kAsk = 0x1023, kTileData = 18;  // of <asm/prctl.h>
  return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
#else
  return false;
#endif
}

int open_memory(const Program& program, Network& network, const void* weights, std::size_t bytes) {
  if (bytes > 0 && !is_aligned(weights)) return kBadArgument;
  if (bytes != program.weight_bytes || content_hash(weights, bytes) != program.weight_hash)
    return kOtherWeights;
  network.program = &program;
  try {
    // placed_constants() is for writers too: nothing writes here.
    bind_all(program, network, static_cast<char*>(const_cast<void*>(weights)));
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::exception&) {
    return kFault;
  }
  if (!program.is_packed) unmap(network);
  return kOk;
}

int open_file(const Program& program, Network& network, const char* path) {
#if defined(__unix__)
  const std::size_t bytes = program.weight_bytes;
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return kNoFile;
  struct stat facts = {};
  const bool has_size =
      fstat(file, &facts) == 0 && static_cast<std::size_t>(facts.st_size) == bytes;
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
    run_step(program.steps[i], network.steps[i], call, threads);
  for (const Copy& copy : program.copies) {
    std::memcpy(call.writable(copy.to), call.readable(copy.from),
                static_cast<std::size_t>(copy.bytes));
  }
  return kOk;
}

}  // namespace torchalgo::emitted
