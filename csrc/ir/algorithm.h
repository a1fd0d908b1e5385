// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/planning.h"
#include "ir/device.h"
#include "ir/layout.h"
#include "ir/plain_kernel.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

struct Kernel;  // provider/kernel.h: what runs on torch's tensors

/// The properties of a primitive that a user should know before choosing it.
struct Traits {
  bool is_deterministic = true;            // the same bits in every run
  bool is_runtime_compiled = false;        // the first use compiles a kernel, which takes seconds
  std::vector<std::string> numerics = {};  // "tensor_core", "winograd_4x4", ...: how it rounds
  /// Bytes that the primitive copies inside from one layout to another. nullopt if unknown.
  std::optional<std::int64_t> hidden_bytes = 0;
  /// The place among what the library itself proposes for these layouts, 0 for the best. nullopt if
  /// it does not propose it.
  std::optional<int> proposal = std::nullopt;
  /// True if the primitive is one of all that a library has. Most of these need not be measured:
  /// see without_dominated().
  bool is_enumerated = false;
  /// Names enumerated primitives that start the same kernels. Empty if there are none.
  std::string_view repeats = {};
  bool operator==(const Traits&) const = default;
};

/// Returns "winograd", "fft" or "strassen" for a primitive of this kind, and "" for any other one.
/// Such an algorithm adds up inputs before it multiplies them. So a large value spoils results that
/// do not read it: see componentwise_error().
[[nodiscard]] std::string_view transform_of(const Traits& traits);

/// A variant of an algorithm that cannot run the problem, although other variants of it may.
struct RefusedVariant {
  std::string primitive;
  std::string reason;
  bool operator==(const RefusedVariant&) const = default;
};

/// An algorithm's answer to a problem. Exactly one of `primitives` and `refusal` is set.
struct Offer {
  std::vector<Primitive> primitives;
  std::string refusal;              // "needs stride 1": why the algorithm cannot run it
  std::vector<Traits> traits = {};  // traits[i] of primitives[i]; empty if all have the default
  std::vector<RefusedVariant> refused = {};
};

/// One algorithm of one provider. A new algorithm is one new file and one line in the provider's
/// list.cpp; planner, tests and benchmarks walk the lists.
struct Algorithm {
  std::string_view name;
  int version = 1;  // raise it when results or speed change, so that old costs are not used
  /// Rounding error relative to that of a plain sum in the problem's type. nullopt for a library,
  /// which may compute in several orders.
  std::optional<double> rounding = std::nullopt;
  std::vector<std::string> numerics = {};  // Traits::numerics of primitives without traits
  bool runs_on_cpu = true;
  bool runs_on_cuda = false;
  /// Returns the primitives that can run a problem, or the reason why there are none. It may query
  /// a library, but does not launch or allocate anything large.
  PlanningFunction<Offer(const Problem&, const Device&)> offer;
  /// Returns the offer for a single primitive by name and layouts; its workspace is ignored. It is
  /// set if `offer` takes long or does not list all primitives. The algorithm's own name stands for
  /// the proposals of its library, best first. If null, the primitive is looked up in `offer`.
  PlanningFunction<Offer(const Problem&, const Device&, const Primitive&)> offer_one = nullptr;
  /// Returns all primitives that `prepare` can run. `offer` leaves out those that cannot be the
  /// fastest for this problem, so that they are not measured, but a plan for other sizes may name
  /// them. If null, `offer` leaves out none.
  PlanningFunction<Offer(const Problem&, const Device&)> offer_all = nullptr;
  /// Binds one of the primitives that `offer` or `offer_all` returned for this problem and device
  /// to plain memory. Null for what needs torch, or a library that makes its own result.
  std::function<cpu::PlainKernel(const Problem&, const Primitive&, const Device&)> bind = nullptr;
  /// Prepares such a primitive for torch's tensors. An algorithm with `bind` gets it from
  /// prepare_with_tensors().
  std::function<Kernel(const Problem&, const Primitive&, const Device&)> prepare = nullptr;
  /// True if the algorithm runs its problems in nchw on any machine, so that a plan can use it as a
  /// fallback.
  bool is_fallback = false;
  /// True if the algorithm is never planned. It runs a problem that no other algorithm can run when
  /// a plan is used on another machine.
  bool is_last_resort = false;
};

using Algorithms = std::vector<Algorithm>;

/// Returns the algorithm that offered `primitive`: the one with the longest name that matches_name.
/// Null if there is none.
[[nodiscard]] const Algorithm* find_algorithm(const Algorithms& algorithms,
                                              std::string_view primitive);

[[nodiscard]] inline bool runs_on(const Algorithm& algorithm, DeviceKind kind) {
  return kind == DeviceKind::kCpu ? algorithm.runs_on_cpu : algorithm.runs_on_cuda;
}

/// Returns what algorithm.offer_all returns, or algorithm.offer if it is null.
[[nodiscard]] inline Offer offer_all(const Algorithm& algorithm, const Problem& problem,
                                     const Device& device) {
  return (algorithm.offer_all ? algorithm.offer_all : algorithm.offer)(problem, device);
}

/// Returns the offer with the one primitive of exactly this name and these layouts, with its
/// workspace. If `algorithm` cannot run it, `refusal` says why.
[[nodiscard]] Offer offer_exact(const Algorithm& algorithm, const Problem& problem,
                                const Device& device, const std::string& name, Layout src,
                                Layout dst);

}  // namespace torchalgo
