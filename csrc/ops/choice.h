// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/device.h"
#include "ir/problem.h"

namespace torchalgo {

/// One entry of a choice: the name of a primitive or an algorithm, a legacy number, or kFree.
struct ChoiceEntry {
  std::optional<DType> dtype;  // the only compute type that it applies to; nullopt: all
  std::string name;
  bool operator==(const ChoiceEntry&) const = default;
};

/// The user's choice for a convolution: a list of entries. The first one that applies to the call's
/// device and compute type counts. So one text can serve CPU, GPU and autocast. An empty choice
/// leaves the decision to the next source of choices.
using Choice = std::vector<ChoiceEntry>;

/// The name that ends the search for a choice. PyTorch then chooses, even if the context, the flags
/// or the plan have a choice.
inline constexpr std::string_view kFree = "free";

/// Parses `auto`, an empty text, or entries `[dtype:]name` separated by `;`. The dtype is one of
/// f64 f32 tf32 f16 bf16. The name is one of:
/// - a primitive: "cudnn9.conv.e22{SPLIT_K=2}"
/// - an algorithm, which stands for all of its variants: "cpu.direct"
/// - a number of cuDNN's legacy enumeration for the direction of the call
/// - `free`
///
/// Spaces around entries are ignored.
/// @throws Error  if `text` is not a choice. The error names the text and the position of the first
/// mistake.
[[nodiscard]] Choice parse_choice(std::string_view text);

/// Returns the canonical text, for which parse_choice(to_string(choice)) == choice. Returns "auto"
/// if the choice is empty.
[[nodiscard]] std::string to_string(const Choice& choice);

/// Returns the name in the first entry of `choice` that applies, or nullopt if none does. Names of
/// provider cpu apply to CPUs, names of providers cudnn... and numbers to CUDA GPUs, all others
/// everywhere. The number n becomes "cudnn_legacy.<direction>.n".
[[nodiscard]] std::optional<std::string> requested(const Choice& choice, Direction direction,
                                                   DeviceKind kind, DType dtype);

}  // namespace torchalgo
