// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo {

/// One way to run a problem: algorithm and layouts. src and dst mean the tensor or its gradient, in
/// every direction: a convolution's kBackwardData reads dst and writes src, its kBackwardFilter
/// reads both. input_layout() and result_layout() below say it in call order.
struct Primitive {
  // provider.algorithm[.variant][{KNOB=value,...}]; on disk: never renamed or reused.
  std::string name;
  Layout src = Layout::kNchw;
  Layout dst = Layout::kNchw;
  std::int64_t workspace_bytes = 0;
  bool operator==(const Primitive&) const = default;
};

/// "cpu.winograd_f4x4_3x3.t14 nChw16c->nChw16c".
[[nodiscard]] std::string to_string(const Primitive& primitive);

/// Layout of data input `index` (not of a residual, which lies as the result does).
[[nodiscard]] Layout input_layout(const Problem& problem, const Primitive& primitive,
                                  std::size_t index = 0);

/// Layout of the result: src of a gradient with respect to src; of the weights' gradient
/// weights_layout().
[[nodiscard]] Layout result_layout(const Problem& problem, const Primitive& primitive);

/// How a primitive wants weights [k, c / groups, (t,) r, s], or writes their gradient: kNhwc (krsc
/// in memory) if its name has the variant "krsc", else kNchw (kcrs). It is part of the name because
/// weights belong to one primitive alone and are packed for it: no edge of the graph carries them.
[[nodiscard]] Layout weights_layout(const Primitive& primitive);

inline constexpr std::string_view kKrscVariant = ".krsc";

/// "cudnn9.conv.e22{K=1}" -> "cudnn9.conv.e22.krsc{K=1}".
[[nodiscard]] std::string with_krsc(const std::string& name);

/// The same way back; a name without the variant stays as it is.
[[nodiscard]] std::string without_krsc(const std::string& name);

/// Whether `pattern` names this primitive or its algorithm: "cpu.direct" matches "cpu.direct",
/// "cpu.direct.t14", "cpu.direct{X=1}" and "cpu.direct@fma", not "cpu.direct2".
[[nodiscard]] bool matches_name(std::string_view name, std::string_view pattern);

}  // namespace torchalgo
