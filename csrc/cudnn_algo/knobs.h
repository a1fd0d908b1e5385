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

/// The knobs of an engine, sorted by name (see sort_by_name), each type once. Empty for the
/// engine's defaults.
using Knobs = std::vector<Knob>;

/// Returns the enumerator's name without CUDNN_KNOB_TYPE_, for example "TILE_SIZE". Returns
/// "KNOB_57" for a type that this list lacks.
[[nodiscard]] std::string knob_name(KnobType type);

/// Returns the type of a name that knob_name() returns, or nullopt for any other text.
[[nodiscard]] std::optional<KnobType> parse_knob_name(std::string_view name);

[[nodiscard]] Knobs sort_by_name(Knobs knobs);

}  // namespace torchalgo::cudnn
