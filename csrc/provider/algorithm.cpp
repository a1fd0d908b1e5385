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

}  // namespace torchalgo
