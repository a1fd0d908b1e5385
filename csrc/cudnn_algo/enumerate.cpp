// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/enumerate.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "cudnn_algo/engine_config.h"
#include "cudnn_algo/errata.h"
#include "cudnn_algo/hidden_bytes.h"
#include "cudnn_algo/knob_search.h"
#include "cudnn_algo/refusal.h"

namespace torchalgo::cudnn {
namespace {

bool is_any(const EngineNotes& notes, std::initializer_list<NumericalNote> wanted) {
  return std::ranges::any_of(wanted, [&](NumericalNote note) { return has(notes, note); });
}

// Returns the proposals of mode A, best first, and then those of mode FALLBACK. The modes INSTANT
// and B give the same proposals as A.
std::vector<HeuristicConfig> ask_heuristics(const OperationGraph& graph, const Target& target,
                                            std::size_t limit) {
  const auto count = static_cast<std::int64_t>(limit);
  auto proposals = ask_heuristic(graph, target, HeuristicMode::kA, count);
  for (auto& proposal : ask_heuristic(graph, target, HeuristicMode::kFallback, count)) {
    proposals.push_back(std::move(proposal));
  }
  return proposals;
}

// Returns the hidden bytes that the workspace of one choice of layouts proves, or nullopt.
std::optional<std::int64_t> hidden_bytes_of(const ConvProblem& conv, const Layouts& layouts,
                                            std::int64_t workspace) {
  const WorkspaceSample sample{layouts, workspace};
  return hidden_bytes(conv, std::span(&sample, 1))[0];
}

// An engine that accepts the graph of one choice of layouts.
struct UsableEngine {
  UsableEngine(OwnedDescriptor engine, EngineNotes its_notes)
      : descriptor(std::move(engine)), notes(std::move(its_notes)) {}
  OwnedDescriptor descriptor;
  EngineNotes notes;
};

class Enumerator {
 public:
  Enumerator(const Api& api, const Target& target, const ConvProblem& conv,
             const EnumerateOptions& options)
      : api_(api), target_(target), conv_(conv), options_(options), pattern_(*pattern_of(conv)) {}

  Enumeration run() {
    for (const Layouts& layouts : all_layouts()) enumerate_layouts(layouts);
    collect_refusals();
    prove_hidden_bytes();
    return std::move(result_);
  }

 private:
  void enumerate_layouts(const Layouts& layouts) {
    const OperationGraph graph = build_graph(api_, conv_, layouts, target_.handle);
    result_.engine_count = engine_count(graph);
    seen_.clear();
    std::map<std::int64_t, UsableEngine> engines;
    for (std::int64_t id = 0; id < result_.engine_count; ++id) {
      try_engine(graph, layouts, id, engines);
    }
    const auto proposals = ask_heuristics(graph, target_, options_.heuristic_limit);
    int place = 0;
    for (const HeuristicConfig& proposal : proposals) {
      const auto engine = engines.find(proposal.engine);
      if (engine == engines.end()) continue;
      try_knobs(layouts, proposal.engine, engine->second, proposal.knobs);
      const auto config = std::ranges::find_if(result_.configs, [&](const EngineConfig& each) {
        return each.layouts == layouts && each.spec.engine == proposal.engine &&
               each.spec.knobs == proposal.knobs;
      });
      if (config != result_.configs.end() && !config->proposal) config->proposal = place++;
    }
    try_neighbours(layouts, engines, proposals);
  }

  void try_engine(const OperationGraph& graph, const Layouts& layouts, std::int64_t id,
                  std::map<std::int64_t, UsableEngine>& engines) {
    // Without a driver each question takes 8 ms and gives the same answer.
    if (const auto known = needs_driver_.find(id); known != needs_driver_.end()) {
      refusals_[id][known->second].push_back(layouts);
      return;
    }
    if (auto reason = errata_refusal(pattern_, id, api_.get_version(), target_.isa)) {
      refusals_[id][*reason].push_back(layouts);
      return;
    }
    DescriptorAnswer engine = make_engine(graph, target_, id);
    if (!engine.descriptor) {
      refusals_[id][engine.refusal].push_back(layouts);
      return;
    }
    EngineNotes notes = read_notes(*engine.descriptor);
    if (auto reason = numeric_refusal(notes, conv_.dtype)) {
      refusals_[id][*reason].push_back(layouts);
      note_families(notes);
      return;
    }
    const UsableEngine& usable =
        engines.try_emplace(id, std::move(*engine.descriptor), std::move(notes)).first->second;
    const DescriptorAnswer config = make_config(usable.descriptor, {}, target_);
    if (config.descriptor) {
      add(layouts, id, {}, workspace_bytes(*config.descriptor), usable.notes);
    } else if (config.status == kNotSupportedRuntimePrerequisiteMissing) {
      needs_driver_.emplace(id, config.refusal);
      refusals_[id][config.refusal].push_back(layouts);
    } else {
      refusals_[id]["with default knobs: " + config.refusal].push_back(layouts);
    }
  }

  // Adds the configuration if cuDNN accepts it. The engine and the knobs must be enough to build it
  // again from its name.
  void try_knobs(const Layouts& layouts, std::int64_t id, const UsableEngine& engine,
                 const Knobs& knobs) {
    if (seen_.contains({id, knobs})) return;
    const DescriptorAnswer config = make_config(engine.descriptor, knobs, target_);
    if (config.descriptor) {
      add(layouts, id, knobs, workspace_bytes(*config.descriptor), engine.notes);
    }
  }

  void try_neighbours(const Layouts& layouts, const std::map<std::int64_t, UsableEngine>& engines,
                      const std::vector<HeuristicConfig>& proposals) {
    std::map<std::int64_t, std::size_t> tried_of_engine;
    std::size_t tried = 0;
    std::size_t centers = 0;
    for (const HeuristicConfig& proposal : proposals) {
      const auto engine = engines.find(proposal.engine);
      if (engine == engines.end()) continue;
      if (++centers > options_.centers) return;
      const auto ranges = knob_ranges(engine->second.descriptor);
      std::size_t& of_engine = tried_of_engine[proposal.engine];
      const std::size_t left = std::min(options_.neighbours_per_engine - of_engine,
                                        options_.neighbours_per_layouts - tried);
      for (const Knobs& knobs : neighbours(proposal.knobs, ranges, left)) {
        try_knobs(layouts, proposal.engine, engine->second, knobs);
        ++of_engine;
        ++tried;
      }
    }
  }

  void add(const Layouts& layouts, std::int64_t id, const Knobs& knobs, std::int64_t bytes,
           const EngineNotes& notes) {
    note_families(notes);
    seen_.insert({id, knobs});
    result_.configs.push_back(
        {{pattern_, id, layouts.weights, knobs}, layouts, bytes, notes, {}, {}});
  }

  void note_families(const EngineNotes& notes) {
    using enum NumericalNote;
    result_.has_winograd |=
        is_any(notes, {kWinograd, kWinogradTile4x4, kWinogradTile6x6, kWinogradTile13x13});
    result_.has_fft |= is_any(notes, {kFft});
  }

  void collect_refusals() {
    for (auto& [id, reasons] : refusals_) {
      for (auto& [reason, layouts] : reasons) {
        if (layouts.size() == all_layouts().size()) layouts.clear();
        result_.refused.push_back({id, std::move(layouts), reason});
      }
    }
  }

  // Sets the hidden bytes of all configurations. The kernels of an engine share their layouts, so
  // its default knobs are enough. Other knobs only change the scratch memory beside the copies.
  void prove_hidden_bytes() {
    std::map<std::int64_t, std::vector<WorkspaceSample>> samples;
    for (const EngineConfig& config : result_.configs) {
      if (!config.spec.knobs.empty()) continue;
      samples[config.spec.engine].push_back({config.layouts, config.workspace_bytes});
    }
    std::map<std::pair<std::int64_t, Layouts>, std::int64_t> hidden;
    for (const auto& [id, of_engine] : samples) {
      const auto proven = hidden_bytes(conv_, of_engine);
      for (std::size_t i = 0; i < of_engine.size(); ++i) {
        if (proven[i]) hidden[{id, of_engine[i].layouts}] = *proven[i];
      }
    }
    for (EngineConfig& config : result_.configs) {
      const auto known = hidden.find({config.spec.engine, config.layouts});
      if (known != hidden.end() && known->second <= config.workspace_bytes) {
        config.hidden_bytes = known->second;
      } else {
        config.hidden_bytes = hidden_bytes_of(conv_, config.layouts, config.workspace_bytes);
      }
    }
  }

  const Api& api_;
  const Target& target_;
  const ConvProblem& conv_;
  const EnumerateOptions options_;
  const Pattern pattern_;
  Enumeration result_;
  std::map<std::int64_t, std::map<std::string, std::vector<Layouts>>> refusals_;
  std::map<std::int64_t, std::string> needs_driver_;  // run-time compiled: engine to its refusal
  std::set<std::pair<std::int64_t, Knobs>> seen_;     // of the present layouts
};

ConfigAnswer ask_config(const OperationGraph& graph, const Target& target, const ConvProblem& conv,
                        const Layouts& layouts, const EngineSpec& spec) {
  const std::size_t version = graph.graph.api().get_version();
  if (auto reason = errata_refusal(spec.pattern, spec.engine, version, target.isa)) {
    return {std::nullopt, *reason};
  }
  const DescriptorAnswer engine = make_engine(graph, target, spec.engine);
  if (!engine.descriptor) return {std::nullopt, engine.refusal};
  EngineNotes notes = read_notes(*engine.descriptor);
  if (auto reason = numeric_refusal(notes, conv.dtype)) return {std::nullopt, *reason};
  const DescriptorAnswer config = make_config(*engine.descriptor, spec.knobs, target);
  if (!config.descriptor) return {std::nullopt, config.refusal};
  const std::int64_t workspace = workspace_bytes(*config.descriptor);
  const auto hidden = hidden_bytes_of(conv, layouts, workspace);
  return {EngineConfig{spec, layouts, workspace, std::move(notes), hidden, {}}, {}};
}

}  // namespace

Enumeration enumerate(const Api& api, const Target& target, const ConvProblem& conv,
                      const EnumerateOptions& options) {
  TORCHALGO_ASSERT(pattern_of(conv).has_value());
  return Enumerator(api, target, conv, options).run();
}

ConfigAnswer ask_config(const Api& api, const Target& target, const ConvProblem& conv,
                        const Layouts& layouts, const EngineSpec& spec) {
  TORCHALGO_ASSERT(spec.weights == layouts.weights && spec.pattern == pattern_of(conv));
  const OperationGraph graph = build_graph(api, conv, layouts, target.handle);
  if (spec.engine >= engine_count(graph)) {
    return {std::nullopt, "cuDNN " + version_text(api) + " has no engine of this number"};
  }
  return ask_config(graph, target, conv, layouts, spec);
}

std::vector<EngineConfig> propose(const Api& api, const Target& target, const ConvProblem& conv,
                                  const Layouts& layouts, std::size_t limit) {
  const auto pattern = pattern_of(conv);
  TORCHALGO_ASSERT(pattern.has_value());
  const OperationGraph graph = build_graph(api, conv, layouts, target.handle);
  std::vector<EngineConfig> configs;
  for (HeuristicConfig& proposal : ask_heuristics(graph, target, limit)) {
    EngineSpec spec{*pattern, proposal.engine, layouts.weights, std::move(proposal.knobs)};
    ConfigAnswer answer = ask_config(graph, target, conv, layouts, spec);
    if (answer.config) configs.push_back(std::move(*answer.config));
  }
  return configs;
}

}  // namespace torchalgo::cudnn
