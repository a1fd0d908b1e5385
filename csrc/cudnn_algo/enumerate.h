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
  std::optional<std::int64_t> hidden_bytes;  // nothing: unknown
};

/// An engine that cannot, or may not, compute the problem.
struct RefusedEngine {
  std::int64_t engine = 0;
  std::vector<Layouts> layouts;  // for which; empty: all
  std::string reason;
};

struct Enumeration {
  std::int64_t engine_count = 0;  // that cuDNN has for the pattern
  std::vector<EngineConfig> configs;
  std::vector<RefusedEngine> refused;
  // Of the engines that take the problem on this machine, whatever their numerics.
  bool has_winograd = false, has_fft = false;
};

struct EnumerateOptions {
  std::size_t heuristic_limit = 40;        // proposals per choice of layouts
  std::size_t centers = 12;                // of the best proposals, whose neighbours are tried
  std::size_t neighbours_per_engine = 16;  // per choice of layouts
  std::size_t neighbours_per_layouts = 64;
};

/// Everything that cuDNN can do for `conv` on the machine: for each of the eight choices of layouts
/// every engine with its default knobs, the heuristics' proposals and knobs near the best of them.
/// Runs nothing and needs no GPU. Engines whose numerics the problem's type forbids are refused.
/// @throws StatusError  if cuDNN cannot express the problem.
[[nodiscard]] Enumeration enumerate(const Api& api, const Target& target, const ConvProblem& conv,
                                    const EnumerateOptions& options = {});

/// The same for one configuration; `reason` is empty if cuDNN accepts it. hidden_bytes is what the
/// workspace alone tells.
struct ConfigAnswer {
  std::optional<EngineConfig> config;
  std::string reason;
};
[[nodiscard]] ConfigAnswer ask_config(const Api& api, const Target& target, const ConvProblem& conv,
                                      const Layouts& layouts, const EngineSpec& spec);

/// What cuDNN's heuristics propose for these layouts, best first: mode A, then FALLBACK. Only what
/// the problem's type allows and cuDNN accepts again by its name; at most `limit` of each mode.
[[nodiscard]] std::vector<EngineConfig> propose(const Api& api, const Target& target,
                                                const ConvProblem& conv, const Layouts& layouts,
                                                std::size_t limit);

}  // namespace torchalgo::cudnn
