// SPDX-License-Identifier: BSD-3-Clause
#include "ops/fallback.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <utility>

#include "base/error.h"
#include "ir/view.h"
#include "provider/find_candidates.h"

namespace torchalgo {
namespace {

bool is_small(const Primitive& primitive) {
  return primitive.workspace_bytes <= CandidateOptions().workspace_limit_bytes;
}

// `all` includes the primitives that `algorithm` offers only by name.
std::optional<Primitive> find_offered(const Algorithm& algorithm, const Problem& problem,
                                      const Device& device, Layout src, Layout dst,
                                      bool all = false) {
  if (!runs_on(algorithm, device.kind)) return std::nullopt;
  Offer offer = all ? offer_all(algorithm, problem, device) : algorithm.offer(problem, device);
  for (Primitive& primitive : offer.primitives) {
    if (primitive.src == src && primitive.dst == dst && is_small(primitive))
      return std::move(primitive);
  }
  return std::nullopt;
}

std::optional<Primitive> propose_for(const Primitive& planned, const Problem& problem,
                                     const Algorithms& algorithms, const Device& device) {
  return propose(problem, algorithms, device, planned.src, planned.dst,
                 /*weights=*/std::nullopt, /*deterministic=*/true);
}

struct Proposal {
  Primitive primitive;
  Traits traits;
};

// Returns the first proposal that may run; one that is compiled when it first runs only if there is
// no other.
std::optional<Proposal> first_proposal(const Problem& problem, const Algorithms& algorithms,
                                       const Device& device, const Primitive& layouts, bool is_krsc,
                                       bool deterministic) {
  std::optional<Proposal> compiled;
  for (const Algorithm& algorithm : algorithms) {
    if (!algorithm.offer_one || !runs_on(algorithm, device.kind)) continue;
    Primitive asked = layouts;
    asked.name = is_krsc ? with_krsc(std::string(algorithm.name)) : algorithm.name;
    Offer offer = algorithm.offer_one(problem, device, asked);
    for (std::size_t i = 0; i < offer.primitives.size(); ++i) {
      Proposal found = {std::move(offer.primitives[i]),
                        i < offer.traits.size() ? offer.traits[i] : Traits()};
      if (!is_small(found.primitive)) continue;
      if (deterministic && !found.traits.is_deterministic) continue;
      if (!found.traits.is_runtime_compiled) return found;
      if (!compiled) compiled = std::move(found);
    }
  }
  return compiled;
}

// Resolves a problem that no primitive runs as a whole in the planned layouts. The longest
// beginning of the epilogue that a primitive fuses is taken.
std::optional<Resolution> resolve_in_parts(const Primitive& planned, const Problem& problem,
                                           const Algorithms& algorithms, const Device& device,
                                           const std::string& reason) {
  const Epilogue& epilogue = epilogue_of(problem);
  for (auto rest = epilogue.end();; --rest) {
    const Problem core = with_epilogue(problem, Epilogue(epilogue.begin(), rest));
    const Epilogue left(rest, epilogue.end());
    if (const auto proposed = propose_for(planned, core, algorithms, device)) {
      return prepare_step(Step::kHeuristic, *find_algorithm(algorithms, proposed->name), core,
                          *proposed, device, reason, left);
    }
    for (const Algorithm& algorithm : algorithms) {
      if (!algorithm.is_fallback) continue;
      auto primitive = find_offered(algorithm, core, device, Layout::kNchw, Layout::kNchw);
      if (primitive) {
        return prepare_step(Step::kAten, algorithm, core, *primitive, device, reason, left);
      }
    }
    if (rest == epilogue.begin()) return std::nullopt;
  }
}

// Finds a primitive that runs the whole problem in the planned layouts. The order is that of
// resolve() from its second step on.
std::optional<Resolution> resolve_in_layouts(const Algorithm* own, const Primitive& planned,
                                             const Problem& problem, const Algorithms& algorithms,
                                             const Device& device, const std::string& reason) {
  if (const auto proposed = propose_for(planned, problem, algorithms, device)) {
    return prepare_step(Step::kHeuristic, *find_algorithm(algorithms, proposed->name), problem,
                        *proposed, device, reason);
  }
  const auto offered = [&](const Algorithm& algorithm, bool all) -> std::optional<Resolution> {
    if (algorithm.offer_one) return std::nullopt;
    const auto other = find_offered(algorithm, problem, device, planned.src, planned.dst, all);
    if (!other) return std::nullopt;
    return prepare_step(Step::kSameLayouts, algorithm, problem, *other, device, reason);
  };
  for (const bool all : {false, true}) {
    if (own == nullptr) break;
    if (auto variant = offered(*own, all)) return variant;
  }
  for (const Algorithm& algorithm : algorithms) {
    if (is_view(algorithm.name)) continue;  // the calling op may promise new memory
    if (auto other = offered(algorithm, /*all=*/false)) return other;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Step step) {
  switch (step) {
    case Step::kPlanned:
      return "exact";
    case Step::kSameLayouts:
      return "same_layouts";
    case Step::kOtherLayouts:
      return "other_layouts";
    case Step::kDefaultKnobs:
      return "default_knobs";
    case Step::kHeuristic:
      return "heuristic";
    case Step::kAten:
      return "aten";
  }
  return "";
}

const std::string& Resolution::name() const {
  static const std::string copy = "aten.copy";
  return !kernel ? copy : kernel->primitive.name;
}

Resolution prepare_step(Step step, const Algorithm& algorithm, const Problem& problem,
                        const Primitive& primitive, const Device& device, std::string reason,
                        Epilogue rest) {
  return {&algorithm, algorithm.prepare(problem, primitive, device), std::move(rest), step,
          std::move(reason)};
}

std::optional<Primitive> propose(const Problem& problem, const Algorithms& algorithms,
                                 const Device& device, Layout src, Layout dst,
                                 std::optional<Layout> weights, bool deterministic) {
  // The smaller, the better: first a kernel that need not be compiled, then fewer copied bytes.
  const auto rank = [&](const Traits& traits) {
    constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();
    return std::pair(traits.is_runtime_compiled,
                     weights ? 0 : traits.hidden_bytes.value_or(kUnknown));
  };
  std::optional<Proposal> best;
  const bool is_krsc_first = weights == Layout::kNhwc;
  for (const bool is_krsc : {is_krsc_first, !is_krsc_first}) {
    auto found =
        first_proposal(problem, algorithms, device, {"", src, dst}, is_krsc, deterministic);
    if (found && (!best || rank(found->traits) < rank(best->traits))) best = std::move(found);
  }
  if (!best) return std::nullopt;
  return std::move(best->primitive);
}

Resolution resolve(const Primitive& planned, const Problem& problem, const Algorithms& algorithms,
                   const Device& device) {
  const Algorithm* own = find_algorithm(algorithms, planned.name);
  std::string reason = fmt::format("this build has no {}", planned.name);
  if (own != nullptr) {
    const Offer offer = offer_exact(*own, problem, device, planned.name, planned.src, planned.dst);
    if (!offer.primitives.empty())
      return prepare_step(Step::kPlanned, *own, problem, offer.primitives[0], device);
    reason = fmt::format("{} refuses {}: {}", planned.name, to_string(problem), offer.refusal);
  }
  auto found = resolve_in_layouts(own, planned, problem, algorithms, device, reason);
  if (!found && std::holds_alternative<TransformProblem>(problem))
    return {nullptr, std::nullopt, {}, Step::kAten, std::move(reason)};
  if (!found) found = resolve_in_parts(planned, problem, algorithms, device, reason);
  TORCHALGO_CHECK(found, "TA4308 torchalgo: no algorithm of this build runs {} ({})",
                  to_string(problem), reason);
  return std::move(*found);
}

}  // namespace torchalgo
