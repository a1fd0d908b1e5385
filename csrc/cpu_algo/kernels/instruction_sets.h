// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <string_view>

#include "cpu_algo/kernels/isa.h"

namespace torchalgo::kernels {

/// A line of the table of isa.h.
struct InstructionSet {
  std::string_view name, capability;
  bool has_wide_registers;
};

#define TORCHALGO_ROW(name, capability, has_wide_registers, ...) \
  {#name, capability, has_wide_registers},
inline constexpr InstructionSet kInstructionSets[] = {TORCHALGO_EACH_ISA(TORCHALGO_ROW, )};
#undef TORCHALGO_ROW

/// Returns the instruction set whose `key` is `text`, or the default one.
[[nodiscard]] constexpr const InstructionSet& instruction_set(
    std::string_view text, std::string_view InstructionSet::*key = &InstructionSet::name) {
  const auto* const last = std::end(kInstructionSets) - 1;
  return *std::find_if(std::begin(kInstructionSets), last,
                       [&](const InstructionSet& set) { return set.*key == text; });
}

}  // namespace torchalgo::kernels
