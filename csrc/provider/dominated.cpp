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

// Makes refusals of the primitives for which reason_of(primitive, traits) returns a text.
template <typename ReasonOf>
ProblemOffers filtered(ProblemOffers offers, const std::string& problem,
                       const ReasonOf& reason_of) {
  ProblemOffers kept;
  kept.refusals = std::move(offers.refusals);
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    Primitive& primitive = offers.primitives[i];
    if (const char* const reason = reason_of(primitive, offers.traits[i])) {
      kept.refusals.push_back({problem, primitive.name, reason});
      continue;
    }
    kept.primitives.push_back(std::move(primitive));
    kept.traits.push_back(std::move(offers.traits[i]));
  }
  return kept;
}

}  // namespace

ProblemOffers without_dominated(ProblemOffers offers, const std::string& problem) {
  std::map<Family, std::int64_t> least;
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    const auto [it, is_new] =
        least.try_emplace(family_of(offers.primitives[i]), hidden_bytes(offers.traits[i]));
    if (!is_new) it->second = std::min(it->second, hidden_bytes(offers.traits[i]));
  }
  const auto reason_of = [&](const Primitive& primitive, const Traits& traits) -> const char* {
    if (hidden_bytes(traits) > least.at(family_of(primitive)))
      return "not measured: it copies more inside than with its weights in another layout";
    if (has_knobs(primitive) && hidden_bytes(traits) > 0)
      return "not measured: it changes a layout inside, other knobs help little there";
    return nullptr;
  };
  return filtered(std::move(offers), problem, reason_of);
}

ProblemOffers without_runtime_compiled(ProblemOffers offers, const std::string& problem) {
  const auto reason_of = [](const Primitive&, const Traits& traits) -> const char* {
    return traits.is_runtime_compiled
               ? "not measured: its first run compiles it, which takes seconds: see "
                 "Settings(runtime_compiled=True)"
               : nullptr;
  };
  return filtered(std::move(offers), problem, reason_of);
}

}  // namespace torchalgo
