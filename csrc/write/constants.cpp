// SPDX-License-Identifier: BSD-3-Clause
#include "write/constants.h"

#include <algorithm>

#include "base/error.h"
#include "base/product.h"

namespace torchalgo {
namespace {

using cpu::LayerPointers;
using cpu::PackedFloats;
using cpu::PackedPointers;

std::int64_t count_of(const std::vector<std::int64_t>& sizes) {
  return sizes.empty() ? 0 : product(sizes);
}

}  // namespace

std::vector<PackedFloats> model_floats(const Problem& problem) {
  std::vector<PackedFloats> floats;
  for (const Problem& layer : layers_of(problem))
    floats.push_back({count_of(weight_sizes(layer)), count_of(bias_sizes(layer))});
  return floats;
}

std::vector<PackedFloats> kernel_floats(const cpu::PlainKernel& kernel, const Problem& problem) {
  std::vector<PackedFloats> floats = model_floats(problem);
  if (!kernel.pack) return floats;
  floats.resize(kernel.packed.size());
  for (std::size_t i = 0; i < floats.size(); ++i) {
    if (kernel.packed[i].weights > 0) floats[i].weights = kernel.packed[i].weights;
    if (kernel.packed[i].bias > 0) floats[i].bias = kernel.packed[i].bias;
  }
  return floats;
}

void write_constants(const cpu::PlainKernel& kernel, const Problem& problem,
                     std::span<const LayerPointers> model, std::span<const PackedPointers> to) {
  const std::vector<PackedFloats> floats = model_floats(problem);
  TORCHALGO_ASSERT(model.size() == floats.size());
  std::vector<PackedPointers> packed(to.begin(), to.end());
  const auto copy = [](const float* from, std::int64_t count, float* target) {
    if (count > 0) std::copy_n(from, count, target);
  };
  for (std::size_t i = 0; i < packed.size(); ++i) {
    const PackedFloats own = kernel.pack ? kernel.packed[i] : PackedFloats();
    if (own.weights == 0) {
      if (i < floats.size()) copy(model[i].weights, floats[i].weights, packed[i].weights);
      packed[i].weights = nullptr;
    }
    if (own.bias == 0) {
      if (i < floats.size()) copy(model[i].bias, floats[i].bias, packed[i].bias);
      packed[i].bias = nullptr;
    }
  }
  if (kernel.pack) kernel.pack(model, packed, kCaller);  // a small part of the time of a start
}

std::vector<PackedPointers> placed_constants(std::span<const PackedFloats> floats, char* begin,
                                             std::size_t& offset) {
  const auto next = [&](std::int64_t count) -> float* {
    if (count == 0) return nullptr;
    offset = (offset + kAlignment - 1) / kAlignment * kAlignment;
    char* const at = begin == nullptr ? nullptr : begin + offset;
    offset += static_cast<std::size_t>(count) * sizeof(float);
    return reinterpret_cast<float*>(at);
  };
  std::vector<PackedPointers> places;
  for (const PackedFloats& layer : floats) {
    float* const weights = next(layer.weights);
    places.push_back({weights, next(layer.bias)});
  }
  return places;
}

std::vector<LayerPointers> for_reading(std::span<const PackedPointers> constants) {
  std::vector<LayerPointers> result;
  for (const PackedPointers& layer : constants) result.push_back({layer.weights, layer.bias});
  return result;
}

}  // namespace torchalgo
