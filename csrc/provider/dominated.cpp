// SPDX-License-Identifier: BSD-3-Clause
#include "provider/dominated.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
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

constexpr int kBestProposals = 4;  // for each choice of layouts

bool uses_tensor_cores(const Traits& traits) {
  return std::ranges::find(traits.numerics, "tensor_core") != traits.numerics.end();
}

// Returns the first kBestProposals of what is offered, for each choice of layouts.
std::set<std::string> best_proposals(const ProblemOffers& offers) {
  using Layouts = std::tuple<Layout, Layout, bool>;  // src, dst, are the weights krsc
  std::map<Layouts, std::map<int, std::string>> by_place;
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    const Primitive& primitive = offers.primitives[i];
    const std::optional<int> place = offers.traits[i].proposal;
    const bool is_krsc = without_krsc(primitive.name) != primitive.name;
    if (place) {
      by_place[{primitive.src, primitive.dst, is_krsc}].emplace(*place, to_string(primitive));
    }
  }
  std::set<std::string> best;
  for (const auto& [layouts, names] : by_place) {
    int count = 0;
    for (const auto& [place, name] : names) {
      if (count++ < kBestProposals) best.insert(name);
    }
  }
  return best;
}

bool has_knobs(const Primitive& primitive) { return primitive.name.find('{') != std::string::npos; }

// Makes refusals of the primitives for which reason_of(primitive, traits) returns a reason.
template <typename ReasonOf>
ProblemOffers filtered(ProblemOffers offers, const std::string& problem,
                       const ReasonOf& reason_of) {
  ProblemOffers kept;
  kept.refusals = std::move(offers.refusals);
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    Primitive& primitive = offers.primitives[i];
    if (const std::string reason = reason_of(primitive, offers.traits[i]); !reason.empty()) {
      kept.refusals.push_back({problem, primitive.name, "not measured: " + reason});
      continue;
    }
    kept.primitives.push_back(std::move(primitive));
    kept.traits.push_back(std::move(offers.traits[i]));
  }
  return kept;
}

}  // namespace

ProblemOffers without_dominated(ProblemOffers offers, const std::string& problem,
                                const CandidateOptions& options) {
  const std::set<std::string> best = best_proposals(offers);
  std::map<Family, std::int64_t> least;
  std::set<std::string_view> transforms;  // of the enumerated ones: "winograd", "fft"
  bool is_any_enumerated = false, has_native = false, has_native_tensor_core = false;
  const auto is_best = [&](const Primitive& p) { return best.contains(to_string(p)); };
  const auto has_measured_knobs = [&](const Primitive& p) {
    return !has_knobs(p) || options.all_knobs || is_best(p);
  };
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    const Primitive& primitive = offers.primitives[i];
    const Traits& traits = offers.traits[i];
    const auto [it, is_new] = least.try_emplace(family_of(primitive), hidden_bytes(traits));
    if (!is_new) it->second = std::min(it->second, hidden_bytes(traits));
    if (!traits.is_enumerated) continue;
    is_any_enumerated = true;
    transforms.insert(transform_of(traits));
    if (!has_measured_knobs(primitive) || traits.hidden_bytes != 0) continue;
    has_native = true;
    has_native_tensor_core |= uses_tensor_cores(traits);
  }
  const auto is_named = [&](const Primitive& primitive) {
    return std::ranges::any_of(options.named, [&](const std::string& pattern) {
      return matches_name(primitive.name, pattern);
    });
  };
  const auto reason_of = [&](const Primitive& primitive, const Traits& traits) -> std::string {
    if (is_named(primitive)) return {};
    if (hidden_bytes(traits) > least.at(family_of(primitive)))
      return "it copies more inside than with its weights in another layout";
    const std::string_view transform = transform_of(traits);
    if (is_any_enumerated && !traits.repeats.empty() &&
        (transform.empty() || transforms.contains(transform)))
      return fmt::format("{} start the same kernels", traits.repeats);
    if (!traits.is_enumerated) return {};
    const bool may_be_native = is_best(primitive) || options.all_knobs;
    if (has_native && traits.hidden_bytes.value_or(may_be_native ? 0 : 1) > 0)
      return "it changes a layout inside, or may do so, and others do not";
    if (has_native_tensor_core && !uses_tensor_cores(traits) && !is_best(primitive))
      return "it uses no tensor cores, and others do";
    if (!has_measured_knobs(primitive))
      return "its library does not propose these knobs among its first: see "
             "Settings(all_knobs=True)";
    return {};
  };
  return filtered(std::move(offers), problem, reason_of);
}

ProblemOffers without_runtime_compiled(ProblemOffers offers, const std::string& problem) {
  const auto reason_of = [](const Primitive&, const Traits& traits) -> std::string {
    return traits.is_runtime_compiled ? "its first run compiles it, which takes seconds: see "
                                        "Settings(runtime_compiled=True)"
                                      : "";
  };
  return filtered(std::move(offers), problem, reason_of);
}

}  // namespace torchalgo
