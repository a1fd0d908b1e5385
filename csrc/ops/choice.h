// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/problem.h"
#include "provider/device.h"

namespace torchalgo {

/// One alternative of a choice: a primitive's or an algorithm's name, a legacy number, or kFree.
struct ChoiceEntry {
  std::optional<DType> dtype;  // applies to this compute type only
  std::string name;
  bool operator==(const ChoiceEntry&) const = default;
};

/// What is asked of a convolution: the first entry that applies to the call's device and compute
/// type. Empty: nothing, whoever is asked next decides. So one text serves a file that runs on CPU
/// and GPU, and autocast.
using Choice = std::vector<ChoiceEntry>;

/// The name that ends the search: PyTorch chooses, whatever context, flags and plan say.
inline constexpr std::string_view kFree = "free";

/// Reads `auto` (or nothing at all) or entries `[dtype:]name` separated by `;`, where dtype is one
/// of f64 f32 tf32 f16 bf16 and name a primitive ("cudnn9.conv.e22{SPLIT_K=2}"), an algorithm
/// ("cpu.direct": any variant of it), a number (cuDNN's legacy enumeration of the direction it is
/// used in), or `free`. Spaces around entries are ignored.
/// @throws Error  naming the text and the character at which it stops being a choice.
[[nodiscard]] Choice parse_choice(std::string_view text);

/// The canonical text: parse_choice(to_string(choice)) == choice; "auto" if it is empty.
[[nodiscard]] std::string to_string(const Choice& choice);

/// What `choice` asks of a convolution; nothing if no entry applies. Names of provider cpu apply to
/// CPUs, names of providers cudnn... and numbers to CUDA GPUs, all others everywhere. The number n
/// becomes "cudnn_legacy.<direction>.n".
[[nodiscard]] std::optional<std::string> requested(const Choice& choice, Direction direction,
                                                   DeviceKind kind, DType dtype);

}  // namespace torchalgo
