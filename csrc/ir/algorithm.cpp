// SPDX-License-Identifier: BSD-3-Clause
#include "ir/algorithm.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace torchalgo {

std::string_view transform_of(const Traits& traits) {
  for (const std::string_view kind : {"winograd", "fft", "strassen"}) {
    const auto is_kind = [&](const std::string& word) { return word.starts_with(kind); };
    if (std::ranges::any_of(traits.numerics, is_kind)) return kind;
  }
  return "";
}

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
  Offer offer = offer_all(algorithm, problem, device);
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
