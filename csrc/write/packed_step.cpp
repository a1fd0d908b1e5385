// SPDX-License-Identifier: BSD-3-Clause
#include "write/packed_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <vector>

#include "base/error.h"
#include "base/product.h"
#include "cpu_algo/list.h"
#include "ir/cost_table.h"
#include "write/constants.h"

namespace torchalgo {
namespace {

using cpu::PlainKernel;

// Returns places at the end of `content`.
std::vector<cpu::PackedPointers> appended(std::span<const cpu::PackedFloats> floats,
                                          std::string& content) {
  std::size_t begin = content.size(), end = begin;
  static_cast<void>(placed_constants(floats, nullptr, end));
  content.resize(end);
  return placed_constants(floats, content.data(), begin);
}

void append_constants(const PlainKernel& kernel, const Problem& problem,
                      std::span<const cpu::LayerPointers> constants, ConstantsFile& file) {
  const std::vector<cpu::PackedFloats> own = model_floats(problem);
  const std::vector<cpu::PackedFloats> read = kernel_floats(kernel, problem);
  std::vector<cpu::LayerPointers> model(constants.begin(), constants.end());
  if (model.empty()) model.resize(own.size());  // changes of layout have none
  for (std::size_t i = 0; i < own.size(); ++i) {
    const bool has_all = (own[i].weights == 0 || model.at(i).weights != nullptr) &&
                         (own[i].bias == 0 || model.at(i).bias != nullptr);
    TORCHALGO_CHECK(has_all, "TA2801 emit: {} lacks its weights or its bias", to_string(problem));
  }
  static_cast<void>(placed_constants(read, nullptr, file.packed_bytes));
  if (file.is_packed)
    write_constants(kernel, problem, model, appended(read, file.content));
  else
    write_constants(PlainKernel(), problem, model, appended(own, file.content));  // copies all
}

// Zeros at a multiple of 64 bytes. The system makes a page of them when it is written.
class Zeros {
 public:
  explicit Zeros(std::size_t bytes) : memory_(std::calloc(bytes + kAlignment, 1), &std::free) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  [[nodiscard]] char* begin() const {
    return static_cast<char*>(memory_.get()) + kAlignment -
           reinterpret_cast<std::uintptr_t>(memory_.get()) % kAlignment;
  }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(begin()); }

 private:
  std::unique_ptr<void, void (*)(void*)> memory_;
};

// Returns the bytes of a tensor in the largest of its layouts.
std::size_t most_bytes(const std::vector<std::int64_t>& sizes) {
  const std::int64_t pixels = product(std::span(sizes).subspan(2));
  const std::int64_t floats = element_count(Layout::kNChw16c, sizes[0], sizes[1], pixels);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

// Runs the kernel once on zeros, so that it notes the instances that it calls.
void run_once(const PlainKernel& kernel, const Problem& problem) {
  std::vector<Zeros> inputs;
  std::vector<const float*> src;
  for (const std::vector<std::int64_t>& sizes : input_sizes(problem))
    src.push_back(inputs.emplace_back(most_bytes(sizes)).floats());
  const float* residual = nullptr;
  if (has(epilogue_of(problem), PostOp::kAdd)) {
    residual = src.back();
    src.pop_back();
  }
  const std::vector<cpu::PackedFloats> floats = kernel_floats(kernel, problem);
  std::size_t bytes = 0, at = 0;
  static_cast<void>(placed_constants(floats, nullptr, bytes));
  const Zeros constants(bytes), dst(most_bytes(result_sizes(problem)));
  const Zeros workspace(static_cast<std::size_t>(kernel.workspace_bytes));
  std::vector<cpu::LayerPointers> weights =
      for_reading(placed_constants(floats, constants.begin(), at));
  if (weights.empty()) weights.emplace_back();
  kernel.run({.src = src,
              .weights = weights,
              .residual = residual,
              .dst = dst.floats(),
              .workspace = workspace.begin()},
             kCaller);
}

std::vector<AlgorithmFile> files_for(const Device& device) {
  std::vector<AlgorithmFile> files = cpu_algorithm_files(device.isa);
  files.push_back({"tiled", false, {cpu::tiled(device.isa)}});
  return files;
}

// Returns the wanted primitive, or the algorithm's first one in the same layouts.
Offer offer_variant(const Algorithm& algorithm, const Problem& problem, const Device& device,
                    const Primitive& wanted) {
  Offer exact = offer_exact(algorithm, problem, device, wanted.name, wanted.src, wanted.dst);
  if (exact.refusal.empty()) return exact;
  for (const Primitive& primitive : algorithm.offer(problem, device).primitives)
    if (primitive.src == wanted.src && primitive.dst == wanted.dst) return {{primitive}, {}};
  return exact;
}

}  // namespace

PackedStep pack_step(const Problem& problem, const Primitive& primitive, const Device& device,
                     std::span<const cpu::LayerPointers> constants, ConstantsFile& file) {
  for (const AlgorithmFile& source : files_for(device)) {
    const Algorithm* const algorithm = find_algorithm(source.algorithms, primitive.name);
    if (algorithm == nullptr) continue;
    const Offer offer = offer_variant(*algorithm, problem, device, primitive);
    TORCHALGO_CHECK(offer.refusal.empty(),
                    "TA2801 emit: {} does not run {} on {}: {}: make the plan for that set",
                    to_string(primitive), to_string(problem), device.isa, offer.refusal);
    const Primitive& own = offer.primitives.at(0);
    auto& noted = *TORCHALGO_PICK_KERNEL(device.isa, noted_instances);
    for (auto& family : noted) family = 0;
    const PlainKernel kernel = algorithm->bind(problem, own, device);
    TORCHALGO_CHECK(!kernel.takes_strides,
                    "TA2801 emit: {} reads tensors of any strides, which C++ code has not",
                    primitive.name);
    append_constants(kernel, problem, constants, file);
    run_once(kernel, problem);
    for (std::size_t i = 0; i < file.instances.size(); ++i) file.instances[i] |= noted[i];
    return {source.name, source.is_family, own.name, kernel.workspace_bytes};
  }
  TORCHALGO_CHECK(false,
                  "TA2801 emit: {} runs {}, which is not an algorithm of torchalgo: plan with "
                  "settings=torchalgo.Settings(own_kernels=True)",
                  to_string(problem), primitive.name);
}

std::vector<std::vector<std::int64_t>> constant_bytes(const Candidates& candidates,
                                                      const Device& device) {
  const std::vector<AlgorithmFile> files = files_for(device);
  std::map<CostKey, std::int64_t> known;
  std::vector<std::vector<std::int64_t>> bytes;
  for (const std::vector<Candidate>& list : candidates.by_anchor) {
    bytes.emplace_back();
    for (const Candidate& c : list) {
      const auto [it, is_new] = known.try_emplace(cost_key(c.problem, c.primitive));
      for (const AlgorithmFile& source : files) {
        const Algorithm* const algorithm = find_algorithm(source.algorithms, c.primitive.name);
        if (!is_new || algorithm == nullptr) continue;
        std::size_t end = 0;
        const PlainKernel kernel = algorithm->bind(c.problem, c.primitive, device);
        static_cast<void>(placed_constants(kernel_floats(kernel, c.problem), nullptr, end));
        it->second = static_cast<std::int64_t>((end + kAlignment - 1) / kAlignment * kAlignment);
      }
      bytes.back().push_back(it->second);
    }
  }
  return bytes;
}

}  // namespace torchalgo
