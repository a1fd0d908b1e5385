// SPDX-License-Identifier: BSD-3-Clause
#include "provider/find_candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "ir/concat_frames.h"
#include "ir/view.h"
#include "provider/dominated.h"

namespace torchalgo {
namespace {

// What one row says; the row's refusals carry its name, those of a primitive the primitive's.
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
    if (primitive.workspace_bytes > options.workspace_limit_bytes) {
      offers.refusals.push_back(
          {spelling, primitive.name,
           fmt::format("needs {} bytes of workspace, the limit is {} (workspace_limit_bytes)",
                       primitive.workspace_bytes, options.workspace_limit_bytes)});
      continue;
    }
    Traits traits = offer.traits.empty() ? Traits() : std::move(offer.traits[i]);
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

// Two measurements would decide by their noise: the activation meets results in registers.
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

  // The anchor alone, then each longer chain.
  [[nodiscard]] std::vector<Chain> chains_from(int anchor) const {
    const Node& node = graph_.nodes[anchor];
    std::vector<Chain> chains = {{{anchor}, *node.problem, node.inputs}};
    if (!may_absorb(*node.problem)) return chains;
    while (auto longer = extend(chains.back())) chains.push_back(std::move(*longer));
    return chains;
  }

 private:
  static bool may_absorb(const Problem& problem) {
    if (const auto* eltwise = std::get_if<EltwiseProblem>(&problem)) {
      return eltwise->kind != EltwiseKind::kActivation;
    }
    return std::holds_alternative<ConvProblem>(problem) ||
           std::holds_alternative<LinearProblem>(problem) ||
           std::holds_alternative<ConcatProblem>(problem) || is_chain_head(problem);
  }

  [[nodiscard]] std::optional<Chain> extend(const Chain& chain) const {
    const Epilogue& epilogue = epilogue_of(chain.problem);
    const int value = graph_.nodes[chain.covers.back()].outputs.at(0);
    if (readers_[value].size() != 1 || is_output_[value]) return std::nullopt;
    const int next = readers_[value][0];
    const Node& reader = graph_.nodes[next];
    if (!reader.problem) return std::nullopt;
    // What follows a tf32 convolution is f32: in memory the same.
    const auto stored = [](const Problem& problem) { return scalar_type(dtype_of(problem)); };
    if (stored(*reader.problem) != stored(chain.problem)) return std::nullopt;
    if (const auto* conv = std::get_if<ConvProblem>(&*reader.problem)) {
      if (!may_follow(chain.problem, *conv)) return std::nullopt;
      Chain longer = chain;
      longer.covers.push_back(next);
      longer.problem = with_next(chain.problem, *conv);
      return longer;
    }
    if (const auto* concat = std::get_if<ConcatProblem>(&chain.problem)) {
      const auto* shuffle = std::get_if<ShuffleProblem>(&*reader.problem);
      if (shuffle == nullptr || concat->groups > 1) return std::nullopt;
      Chain longer = chain;
      longer.covers.push_back(next);
      std::get<ConcatProblem>(longer.problem).groups = shuffle->groups;
      return longer;
    }
    if (!epilogue.empty() && is_activation(epilogue.back())) return std::nullopt;
    const auto* eltwise = std::get_if<EltwiseProblem>(&*reader.problem);
    const bool has_epilogue = !std::holds_alternative<PoolProblem>(chain.problem);
    if (eltwise == nullptr || !has_epilogue) return std::nullopt;
    Chain longer = chain;
    longer.covers.push_back(next);
    Epilogue longer_epilogue = epilogue;
    if (eltwise->kind == EltwiseKind::kActivation) {
      longer_epilogue.push_back(eltwise->epilogue[0]);
    } else if (is_residual_add(*eltwise, chain.problem)) {
      longer_epilogue.push_back(PostOp::kAdd);
      longer.inputs.push_back(reader.inputs[0] == value ? reader.inputs[1] : reader.inputs[0]);
    } else {
      return std::nullopt;
    }
    longer.problem = with_epilogue(chain.problem, std::move(longer_epilogue));
    return longer;
  }

  static bool is_residual_add(const EltwiseProblem& eltwise, const Problem& anchor) {
    return eltwise.kind == EltwiseKind::kAdd && !eltwise.channelwise && eltwise.epilogue.empty() &&
           is_convolution(anchor) && !has(epilogue_of(anchor), PostOp::kAdd);
  }

  // What is done to each element of a 1x1 convolution's input can be done where its blocks are
  // read; behind a global pooling there is little to compute, and much to be called. Two
  // convolutions in one call pay where a depthwise one, which computes little, reads or makes a
  // tensor larger than its neighbour's other end: before or behind it, or both.
  static bool may_follow(const Problem& before, const ConvProblem& next) {
    constexpr std::size_t kMostLayers = 3;
    if (is_chain_head(before))
      return is_forward_2d(next) && is_pointwise(next) && dtype_of(before) == next.dtype;
    if (!is_convolution(before) || has(epilogue_of(before), PostOp::kAdd)) return false;
    const std::vector<Problem> layers = layers_of(before);
    const auto& last = std::get<ConvProblem>(layers.back());
    if (is_chain_head(layers[0])) {
      return std::holds_alternative<PoolProblem>(layers[0]) && layers.size() < kMostLayers &&
             is_forward_2d(next) && is_pointwise(next) && last.dtype == next.dtype;
    }
    return layers.size() < kMostLayers && is_forward_2d(last) && is_forward_2d(next) &&
           last.dtype == next.dtype && is_depthwise(last) != is_depthwise(next);
  }
  static bool is_forward_2d(const ConvProblem& conv) {
    return conv.direction == Direction::kForward && !conv.is_3d;
  }
  static bool is_depthwise(const ConvProblem& conv) {
    return conv.groups > 1 && conv.groups == conv.c && conv.k == conv.c;
  }

  const Graph& graph_;
  std::vector<std::vector<int>> readers_;
  std::vector<bool> is_output_;
};

// Whether a concatenation's inputs may be written side by side.
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

// Blocked and channels_last memory is defined for [n, c, (d,) h, w] only.
bool fits_ranks(const Graph& graph, const Chain& chain, const Primitive& primitive) {
  const auto fits = [&](int value, Layout layout) {
    const std::size_t rank = graph.values[value].sizes.size();
    if (is_blocked(layout)) return rank == 4;
    return layout == Layout::kNchw || rank >= 3;
  };
  for (const int value : chain.inputs) {
    if (!fits(value, input_layout(chain.problem, primitive))) return false;
  }
  return fits(graph.nodes[chain.covers.back()].outputs[0], result_layout(chain.problem, primitive));
}

}  // namespace

ProblemOffers offers_of(const Problem& problem, const Algorithms& algorithms, const Device& device,
                        const CandidateOptions& options) {
  ProblemOffers offers;
  for (const Algorithm& algorithm : algorithms) {
    if (algorithm.is_last_resort || !runs_on(algorithm, device.kind)) continue;
    ask(algorithm, problem, device, options, offers);
  }
  if (options.drop_dominated) return without_dominated(std::move(offers), to_string(problem));
  return offers;
}

Candidates find_candidates(const Graph& graph, const Algorithms& algorithms, const Device& device,
                           const CandidateOptions& options) {
  Candidates candidates;
  candidates.by_anchor.resize(graph.nodes.size());
  candidates.refusals.resize(graph.nodes.size());
  const ChainGrower grower(graph);
  ViewRule views(graph);
  std::map<std::string, ProblemOffers> known;  // nodes of one problem share the answers
  const auto offered = [&](const Problem& problem) -> const auto& {
    const auto [it, is_new] = known.try_emplace(to_string(problem));
    if (is_new) it->second = offers_of(problem, algorithms, device, options);
    return *it;
  };
  const bool keeps_splits = !options.drop_dominated || device.kind != DeviceKind::kCpu;
  for (std::size_t node = 0; node < graph.nodes.size(); ++node) {
    if (!graph.nodes[node].problem) continue;
    const std::vector<Chain> chains = grower.chains_from(static_cast<int>(node));
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const Chain& chain = chains[i];
      const auto& [spelling, offers] = offered(chain.problem);
      const bool may_split = keeps_splits || i + 1 == chains.size() ||
                             !is_lone_activation(*graph.nodes[chains[i + 1].covers.back()].problem);
      for (const Primitive& primitive : offers.primitives) {
        if (!fits_ranks(graph, chain, primitive)) continue;
        if (!views.allows(static_cast<int>(node), primitive)) {
          candidates.refusals[node].push_back({spelling, primitive.name, kNotSideBySide});
          continue;
        }
        if (!may_split && offers_same(offered(chains[i + 1].problem).second, primitive)) {
          candidates.refusals[node].push_back({spelling, primitive.name, kFusesActivation});
          continue;
        }
        candidates.by_anchor[node].push_back(
            {chain.covers, chain.problem, primitive, chain.inputs});
      }
      auto& refusals = candidates.refusals[node];
      refusals.insert(refusals.end(), offers.refusals.begin(), offers.refusals.end());
    }
  }
  return candidates;
}

}  // namespace torchalgo
