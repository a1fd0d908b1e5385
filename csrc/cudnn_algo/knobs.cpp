// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/knobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace torchalgo::cudnn {
namespace {

// The position is the value of cudnnBackendKnobType_t. These names are stored in files and must not
// change.
constexpr std::array<std::string_view, kKnobTypeCount> kNames = {"SPLIT_K",
                                                                 "SWIZZLE",
                                                                 "TILE_SIZE",
                                                                 "USE_TEX",
                                                                 "EDGE",
                                                                 "KBLOCK",
                                                                 "LDGA",
                                                                 "LDGB",
                                                                 "CHUNK_K",
                                                                 "SPLIT_H",
                                                                 "WINO_TILE",
                                                                 "MULTIPLY",
                                                                 "SPLIT_K_BUF",
                                                                 "TILEK",
                                                                 "STAGES",
                                                                 "REDUCTION_MODE",
                                                                 "CTA_SPLIT_K_MODE",
                                                                 "SPLIT_K_SLC",
                                                                 "IDX_MODE",
                                                                 "SLICED",
                                                                 "SPLIT_RS",
                                                                 "SINGLEBUFFER",
                                                                 "LDGC",
                                                                 "SPECFILT",
                                                                 "KERNEL_CFG",
                                                                 "WORKSPACE",
                                                                 "TILE_CGA",
                                                                 "TILE_CGA_M",
                                                                 "TILE_CGA_N",
                                                                 "BLOCK_SIZE",
                                                                 "OCCUPANCY",
                                                                 "ARRAY_SIZE_PER_THREAD",
                                                                 "NUM_C_PER_BLOCK",
                                                                 "SPLIT_COLS",
                                                                 "TILE_ROWS",
                                                                 "TILE_COLS",
                                                                 "LOAD_SIZE",
                                                                 "CTA_COUNT",
                                                                 "STREAM_K",
                                                                 "SPLIT_P_SLC",
                                                                 "TILE_M",
                                                                 "TILE_N",
                                                                 "WARP_SPEC_CFG",
                                                                 "SWAP_AB"};
constexpr std::string_view kUnknownPrefix = "KNOB_";

}  // namespace

std::string knob_name(KnobType type) {
  if (type >= 0 && type < kKnobTypeCount) return std::string(kNames[type]);
  return fmt::format("{}{}", kUnknownPrefix, type);
}

std::optional<KnobType> parse_knob_name(std::string_view name) {
  const auto known = std::ranges::find(kNames, name);
  if (known != kNames.end()) return static_cast<KnobType>(known - kNames.begin());
  if (!name.starts_with(kUnknownPrefix)) return std::nullopt;
  KnobType type = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kUnknownPrefix.size(), end, type);
  if (error != std::errc() || stop != end || knob_name(type) != name) return std::nullopt;
  return type;
}

Knobs sort_by_name(Knobs knobs) {
  std::ranges::sort(knobs, {}, [](const Knob& knob) { return knob_name(knob.type); });
  return knobs;
}

}  // namespace torchalgo::cudnn
