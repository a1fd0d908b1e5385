// SPDX-License-Identifier: BSD-3-Clause
#include "provider/dominated.h"

#include <algorithm>
#include <limits>
#include <map>
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

constexpr std::string_view kLegacy = "cudnn_legacy.", kEngine = "cudnn9.";
constexpr int kBestProposals = 4;  // for each choice of layouts

bool is_engine(const Primitive& primitive) { return primitive.name.starts_with(kEngine); }

bool uses_tensor_cores(const Traits& traits) {
  return std::ranges::find(traits.numerics, "tensor_core") != traits.numerics.end();
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

ProblemOffers without_dominated(ProblemOffers offers, const std::string& problem,
                                const CandidateOptions& options) {
  std::map<Family, std::int64_t> least;
  bool has_native = false, has_engine = false, has_native_tensor_core = false;
  for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
    const Primitive& primitive = offers.primitives[i];
    const Traits& traits = offers.traits[i];
    const auto [it, is_new] = least.try_emplace(family_of(primitive), hidden_bytes(traits));
    if (!is_new) it->second = std::min(it->second, hidden_bytes(traits));
    if (!is_engine(primitive)) continue;
    has_engine = true;
    has_native |= traits.hidden_bytes == 0;
    has_native_tensor_core |= traits.hidden_bytes == 0 && uses_tensor_cores(traits);
  }
  const auto is_named = [&](const Primitive& primitive) {
    return std::ranges::any_of(options.named, [&](const std::string& pattern) {
      return matches_name(primitive.name, pattern);
    });
  };
  const auto reason_of = [&](const Primitive& primitive, const Traits& traits) -> const char* {
    if (is_named(primitive)) return nullptr;
    if (hidden_bytes(traits) > least.at(family_of(primitive)))
      return "not measured: it copies more inside than with its weights in another layout";
    if (has_engine && primitive.name.starts_with(kLegacy))
      return "not measured: the engines of cudnn9 start the same kernels";
    if (!is_engine(primitive)) return nullptr;
    const bool is_best = traits.proposal && *traits.proposal < kBestProposals;
    if (has_native && traits.hidden_bytes.value_or(is_best ? 0 : 1) > 0)
      return "not measured: it changes a layout inside, or may do so, and others do not";
    if (has_native_tensor_core && !uses_tensor_cores(traits) && !is_best)
      return "not measured: it uses no tensor cores, and others do";
    if (has_knobs(primitive) && !is_best && !options.all_knobs)
      return "not measured: cuDNN does not propose these knobs among its first: see "
             "Settings(all_knobs=True)";
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
