// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/problem.h"
#include "provider/device.h"

namespace torchalgo {

/// One entry of a choice: the name of a primitive or an algorithm, a legacy number, or kFree.
struct ChoiceEntry {
  std::optional<DType> dtype;  // the only compute type that it applies to; nullopt: all
  std::string name;
  bool operator==(const ChoiceEntry&) const = default;
};

/// The user's choice for a convolution: a list whose first entry that applies to the call's device
/// and compute type counts. So one text serves a file that runs on CPU and GPU, and autocast. An
/// empty choice leaves the decision to the next source of choices.
using Choice = std::vector<ChoiceEntry>;

/// The name that ends the search for a choice: PyTorch chooses, whatever context, flags and plan
/// say.
inline constexpr std::string_view kFree = "free";

/// Parses `auto`, an empty text, or entries `[dtype:]name` separated by `;`, where dtype is one
/// of f64 f32 tf32 f16 bf16 and name a primitive ("cudnn9.conv.e22{SPLIT_K=2}"), an algorithm
/// ("cpu.direct": any variant of it), a number (cuDNN's legacy enumeration of the direction it is
/// used in), or `free`. Spaces around entries are ignored.
/// @throws Error  naming the text and the character at which it stops being a choice.
[[nodiscard]] Choice parse_choice(std::string_view text);

/// Returns the canonical text: parse_choice(to_string(choice)) == choice; "auto" if it is empty.
[[nodiscard]] std::string to_string(const Choice& choice);

/// Returns the name in the first entry of `choice` that applies, or nullopt if none does. Names of
/// provider cpu apply to CPUs, names of providers cudnn... and numbers to CUDA GPUs, all others
/// everywhere. The number n becomes "cudnn_legacy.<direction>.n".
[[nodiscard]] std::optional<std::string> requested(const Choice& choice, Direction direction,
                                                   DeviceKind kind, DType dtype);

}  // namespace torchalgo
