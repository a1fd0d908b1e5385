// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cudnn_algo/abi.h"

namespace torchalgo::cudnn {

/// One setting of an engine, e.g. its tile size.
struct Knob {
  KnobType type = 0;
  std::int64_t value = 0;
  auto operator<=>(const Knob&) const = default;
};

/// Sorted by name, each type once: see sort_by_name. Empty: the engine's own defaults.
using Knobs = std::vector<Knob>;

/// "TILE_SIZE": the enumerator's name without CUDNN_KNOB_TYPE_; "KNOB_57" for a type that this list
/// does not know.
[[nodiscard]] std::string knob_name(KnobType type);

/// The inverse of knob_name; nothing for any other text.
[[nodiscard]] std::optional<KnobType> parse_knob_name(std::string_view name);

[[nodiscard]] Knobs sort_by_name(Knobs knobs);

}  // namespace torchalgo::cudnn
