// SPDX-License-Identifier: BSD-3-Clause
#include "planner/infeasible.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "pbqp/problem.h"

namespace torchalgo::planner {
namespace {

LayoutSet layouts_written(const Model& model, int value) {
  const ValueFlow& flow = model.flow[value];
  if (flow.producer < 0) return set_of(flow.fixed);
  LayoutSet written = 0;
  for (const Alternative& a : model.alternatives[flow.producer]) {
    if (writes_result(a)) written |= set_of(a.layouts.dst);
  }
  return written;
}

bool can_make(const Model& model, int value, LayoutSet written, LayoutSet wanted) {
  return std::any_of(kAllLayouts.begin(), kAllLayouts.end(), [&](Layout layout) {
    return includes(written, set_of(layout)) &&
           model.transforms.at(value).tree_cost[index_of(layout)][wanted] != pbqp::kForbidden;
  });
}

std::string spell(LayoutSet set) {
  std::vector<std::string_view> names;
  for (const Layout layout : kAllLayouts) {
    if (includes(set, set_of(layout))) names.push_back(to_string(layout));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string no_transform(const Model& model, int value, LayoutSet written, LayoutSet wanted,
                         const std::string& reader) {
  return fmt::format("no transform takes value {} from {} to {} as {} reads it",
                     model.graph.values[value].name, spell(written), spell(wanted), reader);
}

}  // namespace

std::string explain_infeasible(const Model& model) {
  const Graph& graph = model.graph;
  for (int v = 0; v < static_cast<int>(graph.values.size()); ++v) {
    const LayoutSet written = layouts_written(model, v);
    const LayoutSet border = model.flow[v].border;
    if (border != 0 && !can_make(model, v, written, border)) {
      return no_transform(model, v, written, border, "an opaque op or the caller");
    }
    for (const int reader : model.flow[v].readers) {
      LayoutSet wanted = 0;
      bool is_possible = false;
      for (const Alternative& a : model.alternatives[reader]) {
        const LayoutSet read = layouts_read(graph, a.covers, a.position, a.layouts, v);
        wanted |= read;
        is_possible |= read == 0 || can_make(model, v, written, read | border);
      }
      if (!is_possible) return no_transform(model, v, written, wanted, graph.nodes[reader].name);
    }
  }
  return "their layouts or chains exclude each other";
}

}  // namespace torchalgo::planner
