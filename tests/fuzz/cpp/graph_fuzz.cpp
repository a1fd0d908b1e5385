// SPDX-License-Identifier: BSD-3-Clause
// A graph is refused with an Error, or it survives its text and is sound.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "ir/graph_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace torchalgo;
  Graph graph;
  try {
    graph = parse_graph(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error&) {
    return 0;
  }
  if (parse_graph(to_text(graph)) != graph) std::abort();
  check_graph(graph);
  if (structure_hash(graph).size() != 16) std::abort();
  if (readers_of(graph).size() != graph.values.size()) std::abort();
  return 0;
}
