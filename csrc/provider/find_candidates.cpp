// SPDX-License-Identifier: BSD-3-Clause
#include "provider/find_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "ir/concat_frames.h"
#include "ir/fusion_and_chains.h"
#include "ir/view.h"
#include "provider/dominated.h"

namespace torchalgo {
namespace {

// Adds the answer of one algorithm. A refusal has the algorithm's name, or that of the variant.
void ask(const Algorithm& algorithm, const Problem& problem, const Device& device,
         const CandidateOptions& options, ProblemOffers& offers) {
  const std::string spelling = to_string(problem);
  Offer offer = algorithm.offer(problem, device);
  TORCHALGO_ASSERT(offer.primitives.empty() != offer.refusal.empty());
  if (!offer.refusal.empty()) {
    offers.refusals.push_back({spelling, std::string(algorithm.name), std::move(offer.refusal)});
  }
  TORCHALGO_ASSERT(offer.traits.empty() || offer.traits.size() == offer.primitives.size());
  for (RefusedVariant& variant : offer.refused) {
    offers.refusals.push_back({spelling, std::move(variant.primitive), std::move(variant.reason)});
  }
  for (std::size_t i = 0; i < offer.primitives.size(); ++i) {
    Primitive& primitive = offer.primitives[i];
    if (!options.coarse_types && rounds_coarsely(problem, primitive)) continue;
    if (primitive.workspace_bytes > options.workspace_limit_bytes) {
      offers.refusals.push_back(
          {spelling, primitive.name,
           fmt::format("needs {} bytes of workspace, the limit is {} (workspace_limit_bytes)",
                       primitive.workspace_bytes, options.workspace_limit_bytes)});
      continue;
    }
    Traits traits =
        offer.traits.empty() ? Traits{.numerics = algorithm.numerics} : std::move(offer.traits[i]);
    if (options.deterministic && !traits.is_deterministic) {
      offers.refusals.push_back(
          {spelling, primitive.name, "is nondeterministic, and deterministic ones are asked for"});
      continue;
    }
    offers.primitives.push_back(std::move(primitive));
    offers.traits.push_back(std::move(traits));
  }
}

constexpr const char* kNotSideBySide =
    "needs inputs that can lie side by side: each once, none with a place in other memory";

// The activation is applied to results in registers, so the times with and without it hardly
// differ. Two measurements would decide by their noise.
constexpr const char* kFusesActivation =
    "not measured: it applies the activation that follows in the same call";

bool offers_same(const ProblemOffers& offers, const Primitive& primitive) {
  return std::any_of(offers.primitives.begin(), offers.primitives.end(), [&](const Primitive& p) {
    return p.name == primitive.name && p.src == primitive.src && p.dst == primitive.dst;
  });
}

// A chain of nodes that one call may compute, and what that call reads.
struct Chain {
  std::vector<int> covers;
  Problem problem;
  std::vector<int> inputs;
};

class ChainGrower {
 public:
  explicit ChainGrower(const Graph& graph) : graph_(graph), readers_(readers_of(graph)) {
    is_output_.resize(graph.values.size(), false);
    for (const int output : graph.outputs) is_output_[output] = true;
  }

  // Returns the anchor alone, then each longer chain.
  [[nodiscard]] std::vector<Chain> chains_from(int anchor) const {
    const Node& node = graph_.nodes[anchor];
    std::vector<Chain> chains = {{{anchor}, *node.problem, node.inputs}};
    while (auto longer = extend(chains.back())) chains.push_back(std::move(*longer));
    return chains;
  }

 private:
  [[nodiscard]] std::optional<Chain> extend(const Chain& chain) const {
    const int value = graph_.nodes[chain.covers.back()].outputs.at(0);
    if (readers_[value].size() != 1 || is_output_[value]) return std::nullopt;
    const int next = readers_[value][0];
    const Node& reader = graph_.nodes[next];
    if (!reader.problem) return std::nullopt;
    auto fusion = fuse(chain.problem, *reader.problem);
    if (!fusion) return std::nullopt;
    Chain longer = {chain.covers, std::move(fusion->problem), chain.inputs};
    longer.covers.push_back(next);
    if (fusion->adds_residual) {
      longer.inputs.push_back(reader.inputs[0] == value ? reader.inputs[1] : reader.inputs[0]);
    }
    return longer;
  }

  const Graph& graph_;
  std::vector<std::vector<int>> readers_;
  std::vector<bool> is_output_;
};

// The answers to each problem of a graph. Nodes of one problem share them.
class OffersByProblem {
 public:
  void add(const Problem& problem) {
    const auto [it, is_new] = answers_.try_emplace(to_string(problem));
    if (is_new) asked_.emplace_back(problem, &it->second);
  }

  // Asks the algorithms about all problems.
  void ask(const Algorithms& algorithms, const Device& device, const CandidateOptions& options) {
    // cuDNN takes 40 ms for a problem, and answers several threads at once.
    constexpr std::size_t kMostThreads = 8;
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    std::exception_ptr failure;
    const auto work = [&] {
      try {
        for (std::size_t i = next++; i < asked_.size(); i = next++) {
          *asked_[i].second = offers_of(asked_[i].first, algorithms, device, options);
        }
      } catch (...) {
        next = asked_.size();
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    if (device.kind == DeviceKind::kCuda) {
      const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
      try {
        while (threads.size() + 1 < std::min({cores, kMostThreads, asked_.size()})) {
          threads.emplace_back(work);
        }
      } catch (const std::system_error&) {  // the system allows no more
      }
    }
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
  }

  [[nodiscard]] const auto& of(const Problem& problem) const {
    return *answers_.find(to_string(problem));
  }

 private:
  std::map<std::string, ProblemOffers> answers_;
  std::vector<std::pair<Problem, ProblemOffers*>> asked_;
};

// Decides whether a concatenation's inputs may be written side by side.
class ViewRule {
 public:
  explicit ViewRule(const Graph& graph) : graph_(graph) {}

  [[nodiscard]] bool allows(int node, const Primitive& primitive) {
    if (primitive.name != kViewConcat) return true;
    const auto [frames, is_new] = frames_.try_emplace(primitive.dst);
    if (is_new) frames->second = concat_frames(graph_, primitive.dst);
    return frames->second.of_concat[node].has_value();
  }

 private:
  const Graph& graph_;
  std::map<Layout, ConcatFrames> frames_;
};

// Blocked and channels_last memory is defined for [n, c, (d,) h, w] only. Returns the reason if a
// tensor cannot have the primitive's layout.
std::optional<std::string> refuse_rank(const Graph& graph, const Chain& chain,
                                       const Primitive& primitive) {
  const auto refusal = [&](int value, Layout layout) -> std::optional<std::string> {
    const std::size_t rank = graph.values[value].sizes.size();
    if (is_blocked(layout) ? rank == 4 : layout == Layout::kNchw || rank >= 3) return std::nullopt;
    return fmt::format("works in {}, which a tensor of rank {} cannot have", to_string(layout),
                       rank);
  };
  for (const int value : chain.inputs) {
    if (auto reason = refusal(value, input_layout(chain.problem, primitive))) return reason;
  }
  return refusal(graph.nodes[chain.covers.back()].outputs[0],
                 result_layout(chain.problem, primitive));
}

}  // namespace

ProblemOffers offers_of(const Problem& problem, const Algorithms& algorithms, const Device& device,
                        const CandidateOptions& options) {
  ProblemOffers offers;
  for (const Algorithm& algorithm : algorithms) {
    if (algorithm.is_last_resort || !runs_on(algorithm, device.kind)) continue;
    ask(algorithm, problem, device, options, offers);
  }
  if (!options.runtime_compiled)
    offers = without_runtime_compiled(std::move(offers), to_string(problem));
  if (options.drop_dominated) {
    offers = without_dominated(std::move(offers), to_string(problem), options);
  }
  return offers;
}

Candidates find_candidates(const Graph& graph, const Algorithms& algorithms, const Device& device,
                           const CandidateOptions& options) {
  Candidates candidates;
  candidates.by_anchor.resize(graph.nodes.size());
  candidates.refusals.resize(graph.nodes.size());
  const ChainGrower grower(graph);
  std::vector<std::vector<Chain>> chains_of(graph.nodes.size());
  OffersByProblem known;
  for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
    if (!graph.nodes[node].problem) continue;
    chains_of[node] = grower.chains_from(static_cast<int>(node));
    for (const Chain& chain : chains_of[node]) known.add(chain.problem);
  }
  known.ask(algorithms, device, options);
  ViewRule views(graph);
  const bool keeps_splits = !options.drop_dominated || device.kind != DeviceKind::kCpu;
  for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
    const std::vector<Chain>& chains = chains_of[node];
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const Chain& chain = chains[i];
      const auto& [spelling, offers] = known.of(chain.problem);
      const bool may_split = keeps_splits || i + 1 == chains.size() ||
                             !is_lone_activation(*graph.nodes[chains[i + 1].covers.back()].problem);
      for (std::size_t p = 0; p < offers.primitives.size(); ++p) {
        const Primitive& primitive = offers.primitives[p];
        if (auto reason = refuse_rank(graph, chain, primitive)) {
          candidates.refusals[node].push_back({spelling, primitive.name, *std::move(reason)});
          continue;
        }
        if (!views.allows(static_cast<int>(node), primitive)) {
          candidates.refusals[node].push_back({spelling, primitive.name, kNotSideBySide});
          continue;
        }
        if (!may_split && offers_same(known.of(chains[i + 1].problem).second, primitive)) {
          candidates.refusals[node].push_back({spelling, primitive.name, kFusesActivation});
          continue;
        }
        candidates.by_anchor[node].push_back({chain.covers, chain.problem, primitive, chain.inputs,
                                              transform_of(offers.traits[p]).empty()});
      }
      auto& refusals = candidates.refusals[node];
      refusals.insert(refusals.end(), offers.refusals.begin(), offers.refusals.end());
    }
  }
  return candidates;
}

}  // namespace torchalgo
