// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/simplify.h"

#include <ATen/core/function_schema.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/passes/loop_unrolling.h>
#include <torch/csrc/jit/passes/lower_tuples.h>
#include <torch/csrc/jit/passes/peephole.h>
#include <torch/csrc/jit/passes/remove_mutation.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "simplify/known_results.h"
#include "simplify/passes.h"
#include "simplify/size_branches.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Block;
using script::Graph;
using script::Node;
using script::Value;

namespace {

constexpr std::int64_t kMaxUnrolledNodes = 4096;

template <typename F>
void for_each_node(Block block, const F& visit) {
  for (const Node node : block.nodes()) {  // a copy: visit may destroy the node
    for (const Block inner : node.blocks()) for_each_node(inner, visit);
    visit(node);
  }
}

// In eval mode dropout returns its input.
void remove_dropout(const Graph& graph) {
  for_each_node(graph.block(), [](Node node) {
    if (!node.is("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout",
                 "aten::feature_alpha_dropout")) {
      return;
    }
    if (constant_bool(node.argument("train")).value_or(true)) return;
    node.output().replace_uses(node.argument("input"));
    node.destroy();
  });
}

// A list that this block makes and appends to, and that only `cat` reads.
bool is_growing_list(Node node) {
  if (!node.is("prim::ListConstruct")) return false;
  const auto uses = node.output().uses();
  return std::all_of(uses.begin(), uses.end(), [&](const script::Use& use) {
    if (use.user.block() != node.block() || use.offset != 0) return false;
    if (use.user.is("aten::append")) return use.user.output().uses().empty();
    return use.user.is("aten::cat");
  });
}

// Inserts a list of these items in front of `reader`, in the type of `list`.
Value insert_list(Node list, const std::vector<Value>& items, Node reader) {
  const Value made =
      script::Builder(reader, nullptr).op("prim::ListConstruct", {items.begin(), items.end()});
  made.set_type(list.output().type());
  return made;
}

// Gives each reader of a growing list a list of its own, as tracing would have recorded it. Torch's
// pass does not help once the list has been read.
void freeze_list(Node list) {
  auto uses = list.output().uses();
  std::sort(uses.begin(), uses.end(),
            [](const script::Use& a, const script::Use& b) { return a.user.is_before(b.user); });
  std::vector<Value> items = list.inputs();
  for (const auto& [user, offset] : uses) {
    if (user.is("aten::append")) {
      items.push_back(user.input(1));
      user.destroy();
    } else {
      user.replace_input(0, insert_list(list, items, user));
    }
  }
}

void freeze_lists(const Graph& graph) {
  std::vector<Node> lists;
  for_each_node(graph.block(), [&](Node node) {
    if (is_growing_list(node)) lists.push_back(node);
  });
  for (const Node list : lists) freeze_list(list);
}

// Returns true if a node between both, in their block, changes one of its arguments.
bool is_change_between(Node first, Node last) {
  if (first.block() != last.block()) return true;
  for (Node node = first.next(); node != last; node = node.next()) {
    const auto* schema = node.schema();
    const bool changes = schema == nullptr ? node.has_side_effects() : schema->is_mutable();
    if (changes || !node.blocks().empty()) return true;
  }
  return false;
}

// Gives a reader behind a change in place a list of its own. Torch's elimination of dead code
// removes a change that is seen through an older list only.
void give_own_list(Node list) {
  for (const auto& [user, offset] : list.output().uses()) {
    if (!is_change_between(list, user)) continue;
    user.replace_input(offset, insert_list(list, list.inputs(), user));
  }
}

void give_own_lists(const Graph& graph) {
  std::vector<Node> lists;
  for_each_node(graph.block(), [&](Node node) {
    const bool holds_tensors =
        node.is("prim::ListConstruct") && node.input_count() > 0 && is_tensor(node.input(0));
    if (holds_tensors && is_fixed_list(node.output())) lists.push_back(node);
  });
  for (const Node list : lists) give_own_list(list);
}

bool has_large_loop(const Graph& graph) {
  bool is_large = false;
  for_each_node(graph.block(), [&](Node node) {
    if (!node.is("prim::Loop")) return;
    const auto count = constant_number(node.input(0));
    if (!count) return;
    std::int64_t nodes = 0;
    for_each_node(node.blocks().at(0), [&](Node) { ++nodes; });
    is_large = is_large || *count * static_cast<double>(nodes) > kMaxUnrolledNodes;
  });
  return is_large;
}

using GraphPtr = std::shared_ptr<torch::jit::Graph>;

void unroll_small_loops(GraphPtr& graph) {
  if (!has_large_loop(graph)) torch::jit::UnrollConstantLoops(graph);
}

// If TORCHALGO_TRACE_IMPORT is set, prints to stderr what the pass of its scope makes of the graph.
class Trace {
 public:
  Trace(const char* pass, const Graph& graph) : pass_(pass), graph_(*graph.get()) {
    if (is_on()) before_ = graph_.toString(false);
  }
  ~Trace() {
    if (!is_on()) return;
    const std::string after = graph_.toString(false);
    fmt::print(stderr, "torchalgo import: {}{}\n", pass_,
               after == before_ ? " (unchanged)" : ":\n" + after);
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  static bool is_on() { return std::getenv("TORCHALGO_TRACE_IMPORT") != nullptr; }

  const char* pass_;
  const torch::jit::Graph& graph_;
  std::string before_;
};

struct Pass {
  const char* name;
  void (*run)(GraphPtr&);
};

constexpr Pass kPasses[] = {
    {"constants, for the counts of loops",
     [](GraphPtr& graph) { torch::jit::ConstantPropagation(graph); }},
    {"loops", unroll_small_loops},
    {"growing lists", [](GraphPtr& graph) { freeze_lists(graph); }},
    {"mutated lists", [](GraphPtr& graph) { torch::jit::RemoveListMutation(graph); }},
    {"lists behind changes in place", [](GraphPtr& graph) { give_own_lists(graph); }},
    {"mutated tensors", [](GraphPtr& graph) { torch::jit::RemoveTensorMutation(graph); }},
    {"dropout", [](GraphPtr& graph) { remove_dropout(graph); }},
    {"tuples", [](GraphPtr& graph) { torch::jit::LowerSimpleTuples(graph); }},
    {"constants", [](GraphPtr& graph) { torch::jit::ConstantPropagation(graph); }},
    {"peephole",
     [](GraphPtr& graph) {
       torch::jit::PeepholeOptimize(graph, /*disable_shape_peepholes=*/true);
     }},
    {"constants, behind lengths of lists",
     [](GraphPtr& graph) { torch::jit::ConstantPropagation(graph); }},
    {"dead code", [](GraphPtr& graph) { torch::jit::EliminateDeadCode(graph); }},
};

void run_passes(GraphPtr& graph) {
  for (const Pass& pass : kPasses) {
    const Trace trace(pass.name, graph);
    pass.run(graph);
  }
}

// Scripted modules check the rank of their input, and its sizes. If a check stayed in the graph, it
// would read a tensor and fix its layout.
bool resolve_checks(const Graph& graph, const SeenTensors& seen) {
  const Trace trace("ranks of tensors, and checks of sizes", graph);
  bool is_changed = false;
  for_each_node(graph.block(), [&](Node node) {
    const std::optional<c10::IValue> result = known_result(node, seen);
    if (!result) return;
    node.output().replace_uses(script::Builder(node).constant(*result));
    node.destroy();
    is_changed = true;
  });
  return is_changed;
}

bool resolve_branches(const Graph& graph, const std::vector<c10::IValue>& arguments) {
  const Trace trace("branches on sizes", graph);
  return resolve_size_branches(graph, arguments);
}

template <auto pass>
bool run(const Graph& graph, SeenTensors& seen) {
  if constexpr (std::is_invocable_v<decltype(pass), const Graph&>) {
    return pass(graph);
  } else {
    return pass(graph, seen);
  }
}

// A pass that reads the tensors of a run.
struct Rule {
  const char* name;
  bool (*run)(const Graph& graph, SeenTensors& seen);
  bool keeps_seen = false;  // true: it makes no tensors that were not seen, or adds them to `seen`
  // The rule that follows a change. Each round removes nodes, so it ends.
  int next_if_changed = 1;  // 0: the rule itself; -1: the one before it
};

constexpr Rule kRules[] = {
    {"slices that take everything", run<remove_whole_slices>, true},
    {"ops that return their input", run<remove_identities>, true},
    {"in-place ops that nobody else sees", run<functionalize>},
    {"views around the linear layers of squeeze-and-excitation", run<keep_pooled_vectors>},
    {"activations that the model writes down", run<name_written_activations>},
    {"stacks of images", run<take_stacks_apart>},
    {"attention", run<fuse_attention>},
    {"ops that return their input", run<remove_identities>, true},
    {"zeros around the inputs of convolutions", run<fold_pads>, true},
    {"norms without weights, and norms of each channel", run<complete_norms>, true},
    {"batch norms of tokens", run<name_token_norms>},
    // A norm may read the result of another one.
    {"norms over channels that the model writes down", run<name_written_norms>, false, 0},
    {"permutes around linear layers", run<move_channels_first>},
    // A merged convolution may take what follows the sum.
    {"products and sums with constants into convolutions", run<fold_affine>},
    {"sums of convolutions or linear layers of one tensor", run<merge_branches>, false, -1},
    {"zeros that several convolutions read", run<copy_pads>},
    {"splits and shuffles of channels", run<simplify_channel_ops>},
    {"means of images", run<flatten_means>},
};

bool apply(const Rule& rule, const Graph& graph, SeenTensors& seen) {
  const Trace trace(rule.name, graph);
  return rule.run(graph, seen);
}

void inline_calls(const Graph& graph) {
  const Trace trace("inlining", graph);
  torch::jit::Inline(*graph.get());
}

}  // namespace

SeenTensors simplify(const script::Graph& view, const std::vector<c10::IValue>& arguments) {
  GraphPtr graph = view.get();
  inline_calls(graph);
  run_passes(graph);
  SeenTensors seen = see_tensors(graph, arguments);
  // Resolving a branch may uncover another check inside it; each round removes nodes, so it ends.
  while (resolve_checks(graph, seen) || resolve_branches(graph, arguments)) {
    run_passes(graph);
    seen = see_tensors(graph, arguments);
  }
  for (const Rule* rule = std::begin(kRules); rule != std::end(kRules);) {
    const bool is_changed = apply(*rule, graph, seen);
    if (is_changed && !rule->keeps_seen) seen = see_tensors(graph, arguments);
    rule += is_changed ? rule->next_if_changed : 1;
  }
  return seen;
}

}  // namespace torchalgo
