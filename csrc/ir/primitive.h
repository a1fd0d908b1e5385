// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/layout.h"

namespace torchalgo {

/// One way to run a problem: algorithm and layouts. src and dst mean the tensor or its gradient, in
/// every direction; all data inputs lie in `src`, but a residual lies in `dst`.
struct Primitive {
  std::string
      name;  // provider.algorithm[.variant][{KNOB=value,...}]; on disk: never renamed or reused
  Layout src = Layout::kNchw;
  Layout dst = Layout::kNchw;
  std::int64_t workspace_bytes = 0;
  bool operator==(const Primitive&) const = default;
};

/// "cpu.winograd_f4x4_3x3.t14 nChw16c->nChw16c".
[[nodiscard]] std::string to_string(const Primitive& primitive);

/// Whether `pattern` names this primitive or its algorithm: "cpu.direct" matches "cpu.direct",
/// "cpu.direct.t14" and "cpu.direct{X=1}", not "cpu.direct2".
[[nodiscard]] bool matches_name(std::string_view name, std::string_view pattern);

}  // namespace torchalgo
