// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace torchalgo {

/// Returns the graph as lines of tab-separated fields, which keep the structure of a network
/// without its weights:
///
///   torchalgo graph 1
///   value <name> <sizes, comma-separated, or -> <dtype or ->
///   node <name> <kind> <inputs> <outputs> <problem, or - if opaque> <note>
///   input <value> <layout>
///   output <value>
///
/// An opaque node that reads the shape only has "shape" in place of the problem. Values and nodes
/// are numbered in the order of their lines; lists are comma-separated, "-" if empty.
[[nodiscard]] std::string to_text(const Graph& graph);

/// Reads the text of a graph: parse_graph(to_text(g)) == g.
/// @throws Error  naming the line that does not have this form or does not fit a valid graph.
[[nodiscard]] Graph parse_graph(std::string_view text);

}  // namespace torchalgo
