// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/primitive.h"
#include "ir/problem.h"
#include "provider/device.h"
#include "provider/kernel.h"

namespace torchalgo {

/// What a person should know of a primitive before choosing it.
struct Traits {
  bool is_deterministic = true;       // the same bits in every run
  bool is_runtime_compiled = false;   // its first use compiles a kernel, which takes seconds
  std::vector<std::string> numerics;  // "tensor_core", "winograd_4x4", ...: how it rounds
  /// Bytes that it copies from one layout to another inside; nothing: unknown.
  std::optional<std::int64_t> hidden_bytes = 0;
  bool operator==(const Traits&) const = default;
};

/// A variant of an algorithm that cannot run the problem, where the algorithm has several.
struct RefusedVariant {
  std::string primitive;
  std::string reason;
  bool operator==(const RefusedVariant&) const = default;
};

/// An algorithm's answer: exactly one of the first two is set.
struct Offer {
  std::vector<Primitive> primitives;
  std::string refusal;              // "needs stride 1": why the algorithm cannot run it
  std::vector<Traits> traits = {};  // of primitives[i]; empty: the default for all
  std::vector<RefusedVariant> refused = {};
};

/// One algorithm of one provider. A new algorithm is one new file and one line in the provider's
/// list.cpp; planner, tests and benchmarks walk the lists.
struct Algorithm {
  std::string_view name;
  int version = 1;  // raise it when results or speed change: costs measured before become misses
  /// How many times more than a plain sum in the problem's type the algorithm rounds. Nothing for a
  /// library, which may compute in many ways.
  std::optional<double> rounding = std::nullopt;
  bool runs_on_cpu = true;
  bool runs_on_cuda = false;
  /// Returns the primitives that can run a problem, or the reason why there is none. May query a
  /// library; launches and allocates nothing large.
  std::function<Offer(const Problem&, const Device&)> offer;
  /// The same for one primitive by name and layouts (its workspace is not read), where asking for
  /// all takes long or not all are listed. The algorithm's own name asks for what its library
  /// proposes, best first. Null: the primitive is looked up in `offer`.
  std::function<Offer(const Problem&, const Device&, const Primitive&)> offer_one = nullptr;
  /// Prepares one of the primitives that `offer` returned for this problem and device.
  std::function<Kernel(const Problem&, const Primitive&, const Device&)> prepare;
  /// Runs its problems in nchw on any machine, so that a plan can fall back to it.
  bool is_fallback = false;
  /// Never planned: it runs what nothing else does when a plan comes to another machine.
  bool is_last_resort = false;
  /// What `pack` returns serves the same primitive for every n, d, h, w, so that an input of
  /// another size needs no second copy of the weights. False is always right.
  bool packs_for_all_sizes = false;
};

using Algorithms = std::vector<Algorithm>;

/// Returns the algorithm that offered `primitive`: the one with the longest name that matches_name.
/// Null if there is none.
[[nodiscard]] const Algorithm* find_algorithm(const Algorithms& algorithms,
                                              std::string_view primitive);

[[nodiscard]] inline bool runs_on(const Algorithm& algorithm, DeviceKind kind) {
  return kind == DeviceKind::kCpu ? algorithm.runs_on_cpu : algorithm.runs_on_cuda;
}

/// The primitive of exactly this name and layouts that `algorithm` offers, with its workspace; or
/// the reason why there is none in `refusal`.
[[nodiscard]] Offer offer_exact(const Algorithm& algorithm, const Problem& problem,
                                const Device& device, const std::string& name, Layout src,
                                Layout dst);

}  // namespace torchalgo
