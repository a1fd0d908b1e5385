// SPDX-License-Identifier: BSD-3-Clause
#include "planner/encode.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <tuple>

#include "base/error.h"

namespace torchalgo::planner {
namespace {

using pbqp::Cost;
using pbqp::kForbidden;

// A port of a node: for each alternative of `node`, the layouts in which it reads a value. Values
// that a node reads in the same layouts share the port.
struct Port {
  int node = -1;
  std::vector<LayoutSet> reads;
  int values = 0;  // the number of values with this port in their list
};

// The layouts in which all values with a certain suffix of ports must exist.
struct SetVariable {
  int variable = -1;
  std::vector<LayoutSet> domain;  // sets that the readers may read together, ascending
};

class Encoder {
 public:
  explicit Encoder(const Model& model) : model_(model), graph_(model.graph) {}

  Encoding encode() {
    add_choices();
    const std::vector<int> values = values_by_name();
    std::vector<std::vector<int>> ports(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) ports[i] = ports_of(values[i]);
    for (std::vector<int>& list : ports) sort_most_shared_last(list);
    for (std::size_t i = 0; i < values.size(); ++i) add_value(values[i], ports[i]);
    if (constant_ > 0) add_variable({constant_});
    return std::move(encoding_);
  }

 private:
  int add_variable(std::vector<Cost> costs) {
    encoding_.problem.node_costs.push_back(std::move(costs));
    return static_cast<int>(encoding_.problem.node_costs.size()) - 1;
  }

  // One variable per node, in the order of names, so that ties do not depend on array positions.
  void add_choices() {
    std::vector<int> order(graph_.nodes.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return graph_.nodes[a].name < graph_.nodes[b].name; });
    encoding_.variable.assign(graph_.nodes.size(), -1);
    for (const int node : order) {
      if (!graph_.nodes[node].problem) continue;
      std::vector<Cost> costs;
      for (const Alternative& alternative : model_.alternatives[node]) {
        costs.push_back(is_absorbed(alternative) ? 0 : alternative.options.front().cost.ticks);
      }
      encoding_.variable[node] = add_variable(std::move(costs));
    }
  }

  std::vector<int> values_by_name() const {
    std::vector<int> order(graph_.values.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return graph_.values[a].name < graph_.values[b].name; });
    return order;
  }

  std::vector<int> ports_of(int value) {
    std::vector<int> list;
    for (const int node : model_.flow[value].readers) {
      Port port{node, {}, 0};
      for (const Alternative& a : model_.alternatives[node]) {
        port.reads.push_back(layouts_read(graph_, a.covers, a.position, a.layouts, value));
      }
      const auto [it, is_new] =
          port_ids_.try_emplace({node, port.reads}, static_cast<int>(ports_.size()));
      if (is_new) ports_.push_back(std::move(port));
      list.push_back(it->second);
    }
    if (list.size() > 1) {
      for (const int id : list) ++ports_[id].values;
    }
    return list;
  }

  void sort_most_shared_last(std::vector<int>& list) const {
    const auto key = [&](int id) {
      return std::tuple(ports_[id].values, std::string_view(graph_.nodes[ports_[id].node].name));
    };
    std::sort(list.begin(), list.end(), [&](int a, int b) { return key(a) < key(b); });
  }

  void add_value(int value, std::span<const int> ports) {
    if (ports.empty()) {
      charge_border(value);
    } else if (ports.size() == 1) {
      join_single_reader(value, ports_[ports[0]]);
    } else {
      const SetVariable& set = sets_[set_of_suffix(ports)];
      charge_tree(value, set.variable, set.domain);
    }
  }

  // Returns the cost of having `value` in the layouts `wanted` if it is written in the layout
  // `written`.
  Cost tree_cost(int value, Layout written, LayoutSet wanted) const {
    const LayoutSet all = wanted | model_.flow[value].border;
    return model_.transforms.at(value).tree_cost[index_of(written)][all];
  }

  static void add_to(Cost& sum, Cost cost) {
    sum = sum == kForbidden || cost == kForbidden ? kForbidden : sum + cost;
  }

  // Charges a value that no node with a choice reads.
  void charge_border(int value) {
    const ValueFlow& flow = model_.flow[value];
    if (flow.producer < 0) return add_to(constant_, tree_cost(value, flow.fixed, 0));
    std::vector<Cost>& costs = encoding_.problem.node_costs[encoding_.variable[flow.producer]];
    const std::vector<Alternative>& writers = model_.alternatives[flow.producer];
    for (std::size_t i = 0; i < writers.size(); ++i) {
      if (writes_result(writers[i])) add_to(costs[i], tree_cost(value, writers[i].layouts.dst, 0));
    }
  }

  void join_single_reader(int value, const Port& port) {
    const ValueFlow& flow = model_.flow[value];
    const int reader = encoding_.variable[port.node];
    if (flow.producer < 0) return charge_tree(value, reader, port.reads);
    const std::vector<Alternative>& next = model_.alternatives[port.node];
    std::vector<Cost> matrix;
    for (const Alternative& writer : model_.alternatives[flow.producer]) {
      for (std::size_t j = 0; j < next.size(); ++j) {
        if (writes_result(writer) && port.reads[j] != 0) {
          matrix.push_back(tree_cost(value, writer.layouts.dst, port.reads[j]));
        } else {
          matrix.push_back(continues(writer, next[j]) ? 0 : kForbidden);
        }
      }
    }
    add_edge(encoding_.variable[flow.producer], reader, std::move(matrix));
  }

  // Charges the transforms of `value` to all layouts of wanted[i] if `variable` takes its
  // alternative i.
  void charge_tree(int value, int variable, const std::vector<LayoutSet>& wanted) {
    const ValueFlow& flow = model_.flow[value];
    if (flow.producer < 0) {
      std::vector<Cost>& costs = encoding_.problem.node_costs[variable];
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        add_to(costs[i], tree_cost(value, flow.fixed, wanted[i]));
      }
      return;
    }
    std::vector<Cost> matrix;
    for (const Alternative& writer : model_.alternatives[flow.producer]) {
      for (const LayoutSet set : wanted) {
        matrix.push_back(writes_result(writer) ? tree_cost(value, writer.layouts.dst, set)
                                               : kForbidden);
      }
    }
    add_edge(encoding_.variable[flow.producer], variable, std::move(matrix));
  }

  // Returns the index of the set variable for two ports or more. Equal suffixes share a variable.
  int set_of_suffix(std::span<const int> ports) {
    const Port& first = ports_[ports[0]];
    const bool is_last_pair = ports.size() == 2;
    const int rest = is_last_pair ? -1 - ports[1] : set_of_suffix(ports.subspan(1));
    const auto [it, is_new] =
        set_ids_.try_emplace({ports[0], rest}, static_cast<int>(sets_.size()));
    if (!is_new) return it->second;
    const Port* last = is_last_pair ? &ports_[ports[1]] : nullptr;
    const int other = last ? encoding_.variable[last->node] : sets_[rest].variable;
    const std::vector<LayoutSet>& reads = last ? last->reads : sets_[rest].domain;
    SetVariable set = add_set_variable(first.reads, reads);
    add_inclusion(set, encoding_.variable[first.node], first.reads);
    add_inclusion(set, other, reads);
    sets_.push_back(std::move(set));
    return it->second;
  }

  // Adds a variable whose values are the unions of both lists. Other sets are not needed, because a
  // tree to more layouts is never cheaper.
  SetVariable add_set_variable(const std::vector<LayoutSet>& first,
                               const std::vector<LayoutSet>& second) {
    std::set<LayoutSet> unions;
    for (const LayoutSet a : first) {
      for (const LayoutSet b : second) unions.insert(static_cast<LayoutSet>(a | b));
    }
    return {add_variable(std::vector<Cost>(unions.size(), 0)), {unions.begin(), unions.end()}};
  }

  // Requires that `set` includes parts[i] if `variable` takes its alternative i.
  void add_inclusion(const SetVariable& set, int variable, const std::vector<LayoutSet>& parts) {
    std::vector<Cost> matrix;
    for (const LayoutSet whole : set.domain) {
      for (const LayoutSet part : parts) matrix.push_back(includes(whole, part) ? 0 : kForbidden);
    }
    add_edge(set.variable, variable, std::move(matrix));
  }

  void add_edge(int u, int v, std::vector<Cost> matrix) {
    TORCHALGO_ASSERT(u != v);
    encoding_.problem.edges.push_back({u, v, std::move(matrix)});
  }

  const Model& model_;
  const Graph& graph_;
  Encoding encoding_;
  Cost constant_ = 0;  // transforms between layouts that are both fixed
  std::vector<Port> ports_;
  std::map<std::pair<int, std::vector<LayoutSet>>, int> port_ids_;
  std::vector<SetVariable> sets_;
  std::map<std::pair<int, int>, int> set_ids_;  // (first port, set of the rest or -1 - last port)
};

}  // namespace

Encoding encode(const Model& model) { return Encoder(model).encode(); }

}  // namespace torchalgo::planner
