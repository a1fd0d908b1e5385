// SPDX-License-Identifier: BSD-3-Clause
#include "ops/resolve_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"

namespace torchalgo {
namespace {

struct Found {
  Primitive primitive;
  Traits traits;
  Problem problem;  // with the part of the epilogue that the primitive fuses
  Epilogue rest;
};

bool is_changed(const ConvRequest& request, const Primitive& primitive) {
  return primitive.src != request.src || primitive.dst != request.dst;
}

// Returns how far the layouts of `primitive` are from the tensors'. Changes between strided layouts
// count less.
int distance(const ConvRequest& request, const Primitive& primitive) {
  const auto change = [](Layout from, Layout to) {
    return from == to ? 0 : is_blocked(to) ? 3 : 2;
  };
  return change(request.src, primitive.src) + change(request.dst, primitive.dst);
}

std::string without_knobs(const std::string& name) {
  const std::size_t begin = name.find('{');
  if (begin == name.npos) return name;
  return name.substr(0, begin) + name.substr(name.find('}') + 1);
}

// Walks along the fallback steps for one call.
class FallbackWalk {
 public:
  FallbackWalk(const ConvRequest& request, const ConvProblem& problem, const Algorithms& algorithms,
               const Device& device)
      : request_(request), problem_(problem), algorithms_(algorithms), device_(device) {}

  Resolution walk() {
    if (auto found = find_named(request_.name)) {
      return finish(*found,
                    is_changed(request_, found->primitive) ? Step::kOtherLayouts : Step::kPlanned);
    }
    if (auto found = find_in_tf32()) return finish(*found, Step::kPlanned);
    const std::string plain = without_knobs(request_.name);
    if (plain != request_.name) {
      if (auto found = find_named(plain)) return finish(*found, Step::kDefaultKnobs);
    }
    if (auto found = find_heuristic()) return finish(*found, Step::kHeuristic);
    for (const Algorithm& algorithm : algorithms_) {
      if (!algorithm.is_fallback) continue;
      auto found = find_in(algorithm, std::string(algorithm.name), problem_);
      if (found) return finish(*found, Step::kAten);
    }
    throw Error(fmt::format("TA4308 torchalgo: no algorithm of this build runs {} ({})",
                            to_string(problem_), reason_));
  }

 private:
  Resolution finish(Found& found, Step step) {
    const bool is_asked_for = step == Step::kPlanned || step == Step::kOtherLayouts;
    return prepare_step(step, *find_algorithm(algorithms_, found.primitive.name), found.problem,
                        found.primitive, device_, is_asked_for ? std::string() : reason_,
                        std::move(found.rest));
  }

  // Keeps the first refusal, which is the reason for all later steps.
  void refuse(std::string reason) {
    if (reason_.empty()) reason_ = std::move(reason);
  }

  std::optional<Found> find_named(const std::string& name) {
    const Algorithm* algorithm = find_algorithm(algorithms_, name);
    if (algorithm == nullptr) {
      refuse(fmt::format("this build has no {}", name));
      return std::nullopt;
    }
    return find_in(*algorithm, name, problem_);
  }

  std::optional<Found> find_in(const Algorithm& algorithm, const std::string& name,
                               const ConvProblem& problem) {
    if (!runs_on(algorithm, device_.kind)) {
      refuse(fmt::format("{} does not run on {}", name,
                         device_.kind == DeviceKind::kCpu ? "CPUs" : "GPUs"));
      return std::nullopt;
    }
    if (request_.weights == Layout::kNhwc &&
        weights_layout({name, request_.src, request_.dst, 0}) != Layout::kNhwc) {
      const std::string reason = reason_;
      if (auto found = find_variant(algorithm, with_krsc(name), problem)) return found;
      reason_ = reason;  // for the original name
    }
    return find_variant(algorithm, name, problem);
  }

  std::optional<Found> find_variant(const Algorithm& algorithm, const std::string& name,
                                    const ConvProblem& problem) {
    return find_nearest(problem,
                        [&](const ConvProblem& part) { return offers(algorithm, name, part); });
  }

  // Tries the problem with its epilogue and without it. Fewer layout changes count more than a
  // fused epilogue. `offered(part)` returns the primitives to choose from.
  template <typename Offered>
  std::optional<Found> find_nearest(const ConvProblem& problem, const Offered& offered) {
    std::optional<Found> best;
    ConvProblem core = problem;
    core.epilogue = {};
    const int attempts = problem.epilogue.empty() ? 1 : 2;
    for (int i = 0; i < attempts; ++i) {
      const ConvProblem& part = i == 0 ? problem : core;
      for (Found& found : offered(part)) {
        found.rest = i == 0 ? Epilogue() : problem.epilogue;
        if (best && distance(request_, best->primitive) <= distance(request_, found.primitive))
          continue;
        if (is_accepted(found)) best = std::move(found);
      }
    }
    return best;
  }

  // Returns the offered primitives of exactly this name; if there are none, its variants.
  std::vector<Found> offers(const Algorithm& algorithm, const std::string& name,
                            const ConvProblem& problem) {
    if (algorithm.offer_one) return offers_one_by_one(algorithm, name, problem);
    std::vector<Found> exact, variants;
    const bool is_variant = name != algorithm.name;
    Offer offer =
        is_variant ? offer_all(algorithm, problem, device_) : algorithm.offer(problem, device_);
    for (Found& found : read(std::move(offer), name, problem)) {
      if (found.primitive.name == name) {
        exact.push_back(std::move(found));
      } else if (matches_name(found.primitive.name, name)) {
        variants.push_back(std::move(found));
      }
    }
    if (exact.empty()) exact = std::move(variants);
    if (exact.empty()) refuse(fmt::format("{} does not serve {}", name, to_string(problem)));
    return exact;
  }

  std::vector<Found> offers_one_by_one(const Algorithm& algorithm, const std::string& name,
                                       const ConvProblem& problem) {
    return in_all_layouts([&](Layout src, Layout dst) {
      return read(algorithm.offer_one(problem, device_, {name, src, dst, 0}), name, problem);
    });
  }

  // Returns the answers for the tensors' layouts. If there are none, returns those for all others.
  template <typename Ask>
  [[nodiscard]] std::vector<Found> in_all_layouts(const Ask& ask) const {
    std::vector<Found> all = ask(request_.src, request_.dst);
    if (!all.empty()) return all;
    for (const Layout src : {Layout::kNchw, Layout::kNhwc}) {
      for (const Layout dst : {Layout::kNchw, Layout::kNhwc}) {
        if (src == request_.src && dst == request_.dst) continue;
        for (Found& found : ask(src, dst)) all.push_back(std::move(found));
      }
    }
    return all;
  }

  std::vector<Found> read(Offer offer, const std::string& name, const ConvProblem& problem) {
    if (!offer.refusal.empty()) {
      refuse(fmt::format("{} refuses {}: {}", name, to_string(problem), offer.refusal));
    }
    std::vector<Found> all;
    for (std::size_t i = 0; i < offer.primitives.size(); ++i) {
      if (rounds_coarsely(problem, offer.primitives[i])) continue;  // nobody allowed the error
      all.push_back({std::move(offer.primitives[i]),
                     i < offer.traits.size() ? std::move(offer.traits[i]) : Traits(),
                     problem,
                     {}});
    }
    return all;
  }

  bool is_accepted(const Found& found) {
    if (!request_.needs_determinism || found.traits.is_deterministic) return true;
    if (is_unasked_) return false;
    return is_allowed(
        fmt::format("{} is not deterministic, and torch.backends.cudnn.deterministic or "
                    "torch.use_deterministic_algorithms asks for it",
                    found.primitive.name));
  }

  bool is_allowed(std::string conflict) {
    if (request_.conflict == ConflictPolicy::kHonour) return true;
    TORCHALGO_CHECK(request_.conflict == ConflictPolicy::kFallback,
                    "TA4309 torchalgo: {} ({}): choose another one, clear the flag, or set the "
                    "conflict policy to 'fallback' or 'honour'",
                    conflict, to_string(problem_));
    refuse(std::move(conflict));
    return false;
  }

  // Returns the named primitive if it can run the problem in TF32 and the conflict policy allows
  // this.
  std::optional<Found> find_in_tf32() {
    const Algorithm* algorithm = find_algorithm(algorithms_, request_.name);
    if (algorithm == nullptr || problem_.dtype != DType::kF32 ||
        device_.kind != DeviceKind::kCuda) {
      return std::nullopt;
    }
    ConvProblem tf32 = problem_;
    tf32.dtype = DType::kTf32;
    auto found = find_in(*algorithm, request_.name, tf32);
    if (!found || !is_allowed(fmt::format("{} computes in TF32, and torch.backends.cudnn."
                                          "conv.fp32_precision or allow_tf32 forbids it",
                                          request_.name))) {
      return std::nullopt;
    }
    return found;
  }

  // Returns what the heuristics of the GPU's libraries propose. Algorithms without heuristics may
  // have another variant.
  std::optional<Found> find_heuristic() {
    is_unasked_ = true;
    auto proposed = find_nearest(problem_, [&](const ConvProblem& part) {
      return in_all_layouts([&](Layout src, Layout dst) { return proposals(part, src, dst); });
    });
    if (proposed) return proposed;
    const Algorithm* algorithm = find_algorithm(algorithms_, request_.name);
    if (algorithm == nullptr || algorithm->offer_one) return std::nullopt;
    return find_in(*algorithm, std::string(algorithm->name), problem_);
  }

  [[nodiscard]] std::vector<Found> proposals(const ConvProblem& problem, Layout src,
                                             Layout dst) const {
    auto proposed = propose(problem, algorithms_, device_, src, dst, request_.weights,
                            request_.needs_determinism);
    if (!proposed) return {};
    return {{std::move(*proposed), Traits(), problem, {}}};
  }

  const ConvRequest& request_;
  const ConvProblem& problem_;
  const Algorithms& algorithms_;
  const Device& device_;
  std::string reason_;
  bool is_unasked_ = false;  // the request does not name the primitive, which must fit the flags
};

}  // namespace

Resolution resolve_choice(const ConvRequest& request, const ConvProblem& problem,
                          const Algorithms& algorithms, const Device& device) {
  return FallbackWalk(request, problem, algorithms, device).walk();
}

}  // namespace torchalgo
