// SPDX-License-Identifier: BSD-3-Clause
#include "write/packed_step.h"

#include <fmt/format.h>

#include <map>
#include <variant>
#include <vector>

#include "base/error.h"
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

void note_depthwise(const Problem& problem, const Primitive& primitive, ConstantsFile& file) {
  for (const Problem& layer : layers_of(problem)) {
    const auto* const conv = std::get_if<ConvProblem>(&layer);
    if (conv == nullptr || conv->groups != conv->c) continue;
    file.depthwise_filters.emplace(conv->s, conv->stride_w);
    const bool is_blocked = primitive.src == Layout::kNChw16c && primitive.dst == Layout::kNChw16c;
    file.has_other_pixels = file.has_other_pixels || !is_blocked;
  }
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
    const PlainKernel kernel = algorithm->bind(problem, own, device);
    TORCHALGO_CHECK(!kernel.takes_strides,
                    "TA2801 emit: {} reads tensors of any strides, which C++ code has not",
                    primitive.name);
    append_constants(kernel, problem, constants, file);
    note_depthwise(problem, own, file);
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
        it->second = static_cast<std::int64_t>((end + 63) / 64 * 64);
      }
      bytes.back().push_back(it->second);
    }
  }
  return bytes;
}

}  // namespace torchalgo
