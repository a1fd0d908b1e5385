// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/same_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cpu_algo/conv.h"

namespace torchalgo::cpu {

LaneShape lane_shape(Layout layout, std::int64_t n, std::int64_t c) {
  if (layout == Layout::kNchw) return {n * c, 1};
  if (untyped(layout) == Layout::kNhwc) return {n, c};
  const std::int64_t block = block_size(layout);
  return {n * ((c + block - 1) / block), block};
}

const float* advance(const float* tensor, Layout layout, std::int64_t elements) {
  if (layout != Layout::kNhwcBf16) return tensor + elements;
  return reinterpret_cast<const float*>(as_bf16(tensor) + elements);
}

std::int64_t grain_of(std::int64_t floats_per_task) {
  constexpr std::int64_t kFloats = 32768;  // as at::internal::GRAIN_SIZE
  return std::max<std::int64_t>(1, kFloats / std::max<std::int64_t>(1, floats_per_task));
}

Offer offer_f32(std::string_view name, DType dtype, std::initializer_list<Layout> layouts) {
  if (dtype != DType::kF32) return {{}, fmt::format("needs f32, got {}", to_string(dtype))};
  Offer offer;
  for (const Layout layout : layouts) {
    offer.primitives.push_back({std::string(name), layout, layout});
  }
  return offer;
}

Algorithm with_bf16_if_fast(Algorithm algorithm) {
  algorithm.offer_all = algorithm.offer;
  algorithm.offer = [all = std::move(algorithm.offer)](const Problem& problem,
                                                       const Device& device) {
    Offer offer = all(problem, device);
    if (!device.bf16_isa.empty() || !offer.refusal.empty()) return offer;
    std::erase_if(offer.primitives, [](const Primitive& primitive) {
      return is_typed(primitive.src) || is_typed(primitive.dst);
    });
    if (offer.primitives.empty())
      offer.refusal = "needs a processor with AMX, or one of AMD with AVX512_BF16";
    return offer;
  };
  return algorithm;
}

std::string_view bf16_isa_beside(std::string_view isa, const Device& device) {
  return isa == "avx512" ? std::string_view(device.bf16_isa) : std::string_view();
}

std::optional<kernels::Activation> only_activation(const Epilogue& epilogue) {
  const bool fits = epilogue.empty() || (epilogue.size() == 1 && is_activation(epilogue.front()));
  return fits ? std::optional(activation_of(epilogue)) : std::nullopt;
}

void zero_pad_lanes(ClearPadLanes kernel, float* dst, Layout layout, std::int64_t n, std::int64_t c,
                    std::int64_t pixels, const Threads& threads) {
  const std::int64_t block = block_size(layout);
  if (c % block == 0) return;
  const kernels::PadLanes lanes = {dst, (c + block - 1) / block, pixels, c % block};
  parallel_for(threads, n * pixels, grain_of(block), kernel, lanes);
}

}  // namespace torchalgo::cpu
