// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace torchalgo {

/// A graph as lines of tab-separated fields, so that the structure of a network can be kept without
/// its weights:
///
///   torchalgo graph 1
///   value <name> <sizes, comma-separated, or -> <dtype or ->
///   node <name> <kind> <inputs> <outputs> <problem or -> <note>
///   input <value> <layout>
///   output <value>
///
/// Values and nodes are numbered in the order of their lines; lists are comma-separated, "-" if
/// empty.
[[nodiscard]] std::string to_text(const Graph& graph);

/// The inverse: parse_graph(to_text(g)) == g.
/// @throws Error  naming the line that is not as above, or says what no graph can be.
[[nodiscard]] Graph parse_graph(std::string_view text);

}  // namespace torchalgo
