// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/csrc/jit/ir/ir.h>

#include <string>
#include <vector>

namespace torchalgo {

/// Names of `nodes` for plans and reports, unique and the same on every import: the path of the
/// module that computes the node ("layer1.0.conv1"), of a function called in a module the path and
/// the op ("layer1.0.add"), outside of any module the op and its count ("conv2d_3"). A repeated
/// call gets "#1", "#2". The paths are those of the eager model where the front end kept them: a
/// scripted ModuleList loses its own name, which the constants of a layer restore.
[[nodiscard]] std::vector<std::string> name_nodes(const std::vector<torch::jit::Node*>& nodes);

/// Names of forward's arguments without self, without what tracing appends to them.
[[nodiscard]] std::vector<std::string> argument_names(const torch::jit::Graph& graph);

}  // namespace torchalgo
