// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// Returns the calls that led to the node in the Python code of the model, the innermost first,
/// each as "file(line): function". Returns no calls if the front end kept none.
[[nodiscard]] std::vector<std::string> source_calls(const torch::jit::Node& node);

}  // namespace torchalgo
