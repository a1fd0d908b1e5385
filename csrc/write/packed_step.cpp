// SPDX-License-Identifier: BSD-3-Clause
#include "write/packed_step.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "cpu_algo/list.h"

namespace torchalgo {
namespace {

using cpu::LayerPointers;
using cpu::PackedFloats;
using cpu::PackedPointers;
using cpu::PlainKernel;

std::vector<float> copied(const float* from, const std::vector<std::int64_t>& sizes) {
  if (from == nullptr || sizes.empty()) return {};
  const std::int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  return {from, from + count};
}

// The program packs nothing, so threads do not matter.
const cpu::Threads kCaller = {
    [](void*, std::int64_t count, std::int64_t, cpu::Threads::Body call, const void* body) {
      if (count > 0) call(body, 0, count);
    },
    nullptr};

std::vector<PackedLayer> packed_layers(const PlainKernel& kernel, const Problem& problem,
                                       std::span<const LayerPointers> constants) {
  if (constants.empty()) return {};
  const std::vector<Problem> layers = layers_of(problem);
  TORCHALGO_ASSERT(constants.size() == layers.size());
  std::vector<PackedLayer> result;
  if (!kernel.pack) {
    for (std::size_t i = 0; i < layers.size(); ++i)
      result.push_back({copied(constants[i].weights, weight_sizes(layers[i])),
                        copied(constants[i].bias, bias_sizes(layers[i]))});
    return result;
  }
  std::vector<PackedPointers> to;
  for (std::size_t i = 0; i < kernel.packed.size(); ++i) {
    const PackedFloats& floats = kernel.packed[i];
    PackedLayer layer;
    const bool is_own = i < layers.size();
    if (floats.weights > 0)
      layer.weights.resize(static_cast<std::size_t>(floats.weights));
    else if (is_own)
      layer.weights = copied(constants[i].weights, weight_sizes(layers[i]));
    if (floats.bias > 0)
      layer.bias.resize(static_cast<std::size_t>(floats.bias));
    else if (is_own)
      layer.bias = copied(constants[i].bias, bias_sizes(layers[i]));
    result.push_back(std::move(layer));
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    to.push_back({kernel.packed[i].weights > 0 ? result[i].weights.data() : nullptr,
                  kernel.packed[i].bias > 0 ? result[i].bias.data() : nullptr});
  }
  kernel.pack(constants, to, kCaller);
  return result;
}

}  // namespace

PackedStep pack_step(const Problem& problem, const Primitive& primitive, const Device& device,
                     std::span<const LayerPointers> constants) {
  std::vector<AlgorithmFile> files = cpu_algorithm_files(device.isa);
  files.push_back({"tiled", false, {cpu::tiled(device.isa)}});
  for (const AlgorithmFile& file : files) {
    const Algorithm* const algorithm = find_algorithm(file.algorithms, primitive.name);
    if (algorithm == nullptr) continue;
    const Offer offer =
        offer_exact(*algorithm, problem, device, primitive.name, primitive.src, primitive.dst);
    TORCHALGO_CHECK(offer.refusal.empty(),
                    "TA2801 emit: {} does not run {} on {}: {}: make the plan for that set",
                    to_string(primitive), to_string(problem), device.isa, offer.refusal);
    const PlainKernel kernel = algorithm->bind(problem, offer.primitives.at(0), device);
    TORCHALGO_CHECK(!kernel.takes_strides,
                    "TA2801 emit: {} reads tensors of any strides, which C++ code has not",
                    primitive.name);
    return {file.name, file.is_family, kernel.workspace_bytes,
            packed_layers(kernel, problem, constants)};
  }
  TORCHALGO_CHECK(false,
                  "TA2801 emit: {} runs {}, which is not an algorithm of torchalgo: plan with "
                  "settings=torchalgo.Settings(own_kernels=True)",
                  to_string(problem), primitive.name);
}

}  // namespace torchalgo
