// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/layout.h"
#include "ir/problem.h"

namespace torchalgo {

/// An algorithm with all its settings and layouts. `src` and `dst` are the layouts of these tensors
/// or of their gradients, in every direction. For example, kBackwardData of a convolution reads dst
/// and writes src, and kBackwardFilter reads both. input_layout() and result_layout() below return
/// them in call order.
struct Primitive {
  // provider.algorithm[.variant][{KNOB=value,...}]; on disk: never renamed or reused.
  std::string name;
  Layout src = Layout::kNchw;
  Layout dst = Layout::kNchw;
  std::int64_t workspace_bytes = 0;
  bool operator==(const Primitive&) const = default;
};

/// Returns the text of a primitive, for example "cpu.winograd_f4x4_3x3.t14 nChw16c->nChw16c".
[[nodiscard]] std::string to_string(const Primitive& primitive);

/// Returns the layout of data input `index`. A residual is not among these: it has the result's
/// layout.
[[nodiscard]] Layout input_layout(const Problem& problem, const Primitive& primitive,
                                  std::size_t index = 0);

/// Returns the layout of the result: `dst` of a forward problem, `src` of a gradient with respect
/// to src, weights_layout() of the weights' gradient.
[[nodiscard]] Layout result_layout(const Problem& problem, const Primitive& primitive);

/// Returns the layout in which a primitive reads weights [k, c / groups, (t,) r, s] or writes their
/// gradient. It is kNhwc (krsc in memory) if the name has the variant "krsc", else kNchw (kcrs). It
/// is part of the name because weights are packed for one primitive alone, so that no edge of the
/// graph carries them.
[[nodiscard]] Layout weights_layout(const Primitive& primitive);

/// Returns the type with the fewest digits in which the primitive stores a tensor or its packed
/// weights, in a problem of type `dtype`. Weights have the type of the name's variant "wbf16" or
/// "wf16". The result is `dtype` unless the primitive stores something in a coarser type.
[[nodiscard]] DType stored_type(const Primitive& primitive, DType dtype);

/// Returns true if the primitive of a problem that is no change of layout stores data in a coarser
/// type than the problem's.
[[nodiscard]] bool rounds_coarsely(const Problem& problem, const Primitive& primitive);

inline constexpr std::string_view kKrscVariant = ".krsc";

/// Returns the name with the variant: "cudnn9.conv.e22.krsc{K=1}" for "cudnn9.conv.e22{K=1}".
[[nodiscard]] std::string with_krsc(const std::string& name);

/// Returns the name without the variant. A name that lacks it is returned unchanged.
[[nodiscard]] std::string without_krsc(const std::string& name);

/// Returns true if `pattern` names this primitive or its algorithm: "cpu.direct" matches
/// "cpu.direct", "cpu.direct.t14", "cpu.direct{X=1}" and "cpu.direct@fma", but not "cpu.direct2".
/// With a dot at its end, as "cpu.direct.", it names the primitive without a variant only.
[[nodiscard]] bool matches_name(std::string_view name, std::string_view pattern);

}  // namespace torchalgo
