// SPDX-License-Identifier: BSD-3-Clause
#include "provider/dominated.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace torchalgo {
namespace {

// The key of primitives that differ only in the layout of the weights.
using Family = std::tuple<std::string, Layout, Layout>;

Family family_of(const Primitive& primitive) {
  return {without_krsc(primitive.name), primitive.src, primitive.dst};
}

std::int64_t hidden_bytes(const Traits& traits) {
  return traits.hidden_bytes.value_or(std::numeric_limits<std::int64_t>::max());
}

bool has_knobs(const Primitive& primitive) { return primitive.name.find('{') != std::string::npos; }

}  // namespace

ProblemOffers without_dominated(ProblemOffers offers, const std::string& problem) {
  std::map<Family, std::int64_t> least;
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    const auto [it, is_new] =
        least.try_emplace(family_of(offers.primitives[i]), hidden_bytes(offers.traits[i]));
    if (!is_new) it->second = std::min(it->second, hidden_bytes(offers.traits[i]));
  }
  const bool all_compile =
      std::all_of(offers.traits.begin(), offers.traits.end(),
                  [](const Traits& traits) { return traits.is_runtime_compiled; });
  ProblemOffers kept;
  kept.refusals = std::move(offers.refusals);
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    Primitive& primitive = offers.primitives[i];
    Traits& traits = offers.traits[i];
    const char* reason = nullptr;
    if (hidden_bytes(traits) > least.at(family_of(primitive))) {
      reason = "not measured: it copies more inside than with its weights in another layout";
    } else if (has_knobs(primitive) && hidden_bytes(traits) > 0) {
      reason = "not measured: it changes a layout inside, other knobs help little there";
    } else if (traits.is_runtime_compiled && !all_compile) {
      reason = "not measured: its first run compiles it, which takes seconds";
    }
    if (reason != nullptr) {
      kept.refusals.push_back({problem, primitive.name, reason});
      continue;
    }
    kept.primitives.push_back(std::move(primitive));
    kept.traits.push_back(std::move(traits));
  }
  return kept;
}

}  // namespace torchalgo
