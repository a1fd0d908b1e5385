// SPDX-License-Identifier: BSD-3-Clause
#include "ops/resolve.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "ir/view.h"
#include "provider/find_candidates.h"

namespace torchalgo {
namespace {

std::optional<Primitive> find_offered(const Algorithm& algorithm, const Problem& problem,
                                      const Device& device, Layout src, Layout dst) {
  if (!runs_on(algorithm, device.kind)) return std::nullopt;
  Offer offer = algorithm.offer(problem, device);
  for (Primitive& primitive : offer.primitives) {
    const bool is_small = primitive.workspace_bytes <= CandidateOptions().workspace_limit_bytes;
    if (primitive.src == src && primitive.dst == dst && is_small) return std::move(primitive);
  }
  return std::nullopt;
}

// Finds the fallback that fuses the longest beginning of the epilogue. `rest` is what follows it.
std::optional<Resolution> resolve_to_aten(const Problem& problem, const Algorithms& algorithms,
                                          const Device& device, const std::string& reason) {
  const Epilogue& epilogue = epilogue_of(problem);
  for (auto rest = epilogue.end();; --rest) {
    const Problem core = with_epilogue(problem, Epilogue(epilogue.begin(), rest));
    for (const Algorithm& algorithm : algorithms) {
      if (!algorithm.is_fallback) continue;
      auto primitive = find_offered(algorithm, core, device, Layout::kNchw, Layout::kNchw);
      if (!primitive) continue;
      return prepare_step(Step::kAten, algorithm, core, *primitive, device, reason,
                          Epilogue(rest, epilogue.end()));
    }
    if (rest == epilogue.begin()) return std::nullopt;
  }
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

Resolution resolve(const Primitive& planned, const Problem& problem, const Algorithms& algorithms,
                   const Device& device) {
  const auto offered = [&](const Algorithm& algorithm) {
    return find_offered(algorithm, problem, device, planned.src, planned.dst);
  };
  const Algorithm* own = find_algorithm(algorithms, planned.name);
  std::string reason = fmt::format("this build has no {}", planned.name);
  if (own != nullptr) {
    const Offer offer = offer_exact(*own, problem, device, planned.name, planned.src, planned.dst);
    if (!offer.primitives.empty())
      return prepare_step(Step::kPlanned, *own, problem, offer.primitives[0], device);
    reason = fmt::format("{} refuses {}: {}", planned.name, to_string(problem), offer.refusal);
    if (const auto variant = offered(*own))
      return prepare_step(Step::kSameLayouts, *own, problem, *variant, device, reason);
  }
  for (const Algorithm& algorithm : algorithms) {
    if (is_view(algorithm.name)) continue;  // the calling op may promise new memory
    if (const auto primitive = offered(algorithm))
      return prepare_step(Step::kSameLayouts, algorithm, problem, *primitive, device, reason);
  }
  if (std::holds_alternative<TransformProblem>(problem))
    return {nullptr, std::nullopt, {}, Step::kAten, std::move(reason)};
  auto resolution = resolve_to_aten(problem, algorithms, device, reason);
  TORCHALGO_CHECK(resolution, "TA4308 torchalgo: no algorithm of this build runs {} ({})",
                  to_string(problem), reason);
  return std::move(*resolution);
}

}  // namespace torchalgo
