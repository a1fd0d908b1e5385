// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "torchscript/graph_view.h"

namespace torchalgo {

/// Returns the names of `nodes` for plans and reports. They are unique, and the same at every
/// import. A node that a module computes has the path of the module ("layer1.0.conv1"). A function
/// called in a module has its path and the op ("layer1.0.add"). A node outside of any module has
/// the op and its count ("conv2d_3"). Repeated calls get "#1", "#2". The paths are those of the
/// eager model, as far as the front end kept them. A scripted ModuleList loses its own name; the
/// names of a layer's constants restore it.
[[nodiscard]] std::vector<std::string> name_nodes(const std::vector<torch::jit::Node*>& nodes);

/// Returns the names of forward's arguments except self, without the suffixes that tracing appends.
[[nodiscard]] std::vector<std::string> argument_names(const torch::jit::Graph& graph);

}  // namespace torchalgo
