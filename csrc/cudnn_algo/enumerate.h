// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cudnn_algo/engine.h"
#include "cudnn_algo/graph.h"
#include "cudnn_algo/plan.h"
#include "ir/problem.h"

namespace torchalgo::cudnn {

/// A configuration that cuDNN accepts.
struct EngineConfig {
  EngineSpec spec;
  Layouts layouts;
  std::int64_t workspace_bytes = 0;
  EngineNotes notes;
  std::optional<std::int64_t> hidden_bytes;  // nullopt if unknown
  std::optional<int> proposal;  // place among the heuristics' proposals for these layouts, best 0
};

/// An engine that cannot compute the problem, or is not allowed to.
struct RefusedEngine {
  std::int64_t engine = 0;
  std::vector<Layouts> layouts;  // that are refused; empty for all
  std::string reason;
};

struct Enumeration {
  std::int64_t engine_count = 0;  // engines of cuDNN for the pattern
  std::vector<EngineConfig> configs;
  std::vector<RefusedEngine> refused;
  // True if some engine that accepts the problem on this machine is of this kind, even if its
  // numerics are refused.
  bool has_winograd = false, has_fft = false;
};

struct EnumerateOptions {
  std::size_t heuristic_limit = 40;        // proposals per choice of layouts
  std::size_t centers = 12;                // best proposals whose neighbours are tried
  std::size_t neighbours_per_engine = 16;  // per choice of layouts
  std::size_t neighbours_per_layouts = 64;
};

/// Returns the configurations of cuDNN for `conv` on the machine. For each of the eight choices of
/// layouts these are every engine with its default knobs, the heuristics' proposals, and knobs near
/// the best proposals. Engines whose numerics the problem's type forbids are refused. Nothing is
/// run, and no GPU is needed.
/// @throws StatusError  if cuDNN cannot express the problem.
[[nodiscard]] Enumeration enumerate(const Api& api, const Target& target, const ConvProblem& conv,
                                    const EnumerateOptions& options = {});

/// The answer for one configuration. `reason` is empty if cuDNN accepts it. hidden_bytes is derived
/// from this configuration's workspace alone.
struct ConfigAnswer {
  std::optional<EngineConfig> config;
  std::string reason;
};
[[nodiscard]] ConfigAnswer ask_config(const Api& api, const Target& target, const ConvProblem& conv,
                                      const Layouts& layouts, const EngineSpec& spec);

/// Returns the proposals of cuDNN's heuristics for these layouts, best first: those of mode A, then
/// those of FALLBACK, at most `limit` of each. A proposal is left out if the problem's type forbids
/// it, or if cuDNN does not accept its name.
[[nodiscard]] std::vector<EngineConfig> propose(const Api& api, const Target& target,
                                                const ConvProblem& conv, const Layouts& layouts,
                                                std::size_t limit);

}  // namespace torchalgo::cudnn
