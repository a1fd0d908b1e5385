// SPDX-License-Identifier: BSD-3-Clause
#include "provider/algorithm.h"

#include <fmt/format.h>

#include "base/error.h"

namespace torchalgo {

const Algorithm* find_algorithm(const Algorithms& algorithms, std::string_view primitive) {
  const Algorithm* best = nullptr;
  for (const Algorithm& algorithm : algorithms) {
    if (!matches_name(primitive, algorithm.name)) continue;
    if (best == nullptr || algorithm.name.size() > best->name.size()) best = &algorithm;
  }
  return best;
}

Offer offer_exact(const Algorithm& algorithm, const Problem& problem, const Device& device,
                  const std::string& name, Layout src, Layout dst) {
  if (!runs_on(algorithm, device.kind)) {
    return {{},
            fmt::format("does not run on {}", device.kind == DeviceKind::kCpu ? "CPUs" : "GPUs")};
  }
  if (algorithm.offer_one) return algorithm.offer_one(problem, device, {name, src, dst, 0});
  Offer offer = algorithm.offer(problem, device);
  if (!offer.refusal.empty()) return offer;
  for (Primitive& primitive : offer.primitives) {
    if (primitive.name == name && primitive.src == src && primitive.dst == dst) {
      return {{std::move(primitive)}, {}};
    }
  }
  return {{},
          fmt::format("has no {} {}->{} for this problem", name, to_string(src), to_string(dst))};
}

std::vector<at::Tensor> tensors_of(const Weights& weights) {
  std::vector<at::Tensor> tensors = {weights.weights, weights.bias};
  for (const Weights& next : weights.next) {
    const std::vector<at::Tensor> more = tensors_of(next);
    tensors.insert(tensors.end(), more.begin(), more.end());
  }
  return tensors;
}

Weights weights_from(const std::vector<at::Tensor>& tensors) {
  TORCHALGO_ASSERT(tensors.size() >= 2 && tensors.size() % 2 == 0);
  Weights weights = {tensors[0], tensors[1]};
  for (std::size_t i = 2; i < tensors.size(); i += 2)
    weights.next.push_back({tensors[i], tensors[i + 1]});
  return weights;
}

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return at::kDouble;
    case DType::kF32:
    case DType::kTf32:
      return at::kFloat;
    case DType::kF16:
      return at::kHalf;
    case DType::kBf16:
      return at::kBFloat16;
  }
  return at::kFloat;
}

}  // namespace torchalgo
