// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/simplify.h"

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
#include <optional>
#include <string>
#include <string_view>

#include "simplify/attention.h"
#include "simplify/channel_ops.h"
#include "simplify/channels_first.h"
#include "simplify/complete_norms.h"
#include "simplify/fold_affine.h"
#include "simplify/fold_pads.h"
#include "simplify/functionalize.h"
#include "simplify/identities.h"
#include "simplify/known_results.h"
#include "simplify/merge_branches.h"
#include "simplify/pooled_vectors.h"
#include "simplify/size_branches.h"
#include "simplify/stacks.h"
#include "simplify/token_norms.h"
#include "simplify/written_activations.h"
#include "simplify/written_norms.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

constexpr std::int64_t kMaxUnrolledNodes = 4096;

template <typename F>
void for_each_node(Block* block, const F& visit) {
  for (auto it = block->nodes().begin(); it != block->nodes().end();) {
    Node* node = *it++;  // visit may destroy it
    for (Block* inner : node->blocks()) for_each_node(inner, visit);
    visit(node);
  }
}

// In eval mode dropout returns its input.
void remove_dropout(Graph& graph) {
  for_each_node(graph.block(), [](Node* node) {
    const std::string_view kind = node->kind().toQualString();
    if (kind != "aten::dropout" && kind != "aten::feature_dropout" &&
        kind != "aten::alpha_dropout" && kind != "aten::feature_alpha_dropout") {
      return;
    }
    if (constant_bool(node->namedInput("train")).value_or(true)) return;
    node->output()->replaceAllUsesWith(node->namedInput("input"));
    node->destroy();
  });
}

// A list that this block makes and appends to, and that only `cat` reads.
bool is_growing_list(const Node* node) {
  if (!is_kind(node, "prim::ListConstruct")) return false;
  const auto& uses = node->output()->uses();
  return std::all_of(uses.begin(), uses.end(), [&](const torch::jit::Use& use) {
    if (use.user->owningBlock() != node->owningBlock() || use.offset != 0) return false;
    if (is_kind(use.user, "aten::append")) return !use.user->output()->hasUses();
    return is_kind(use.user, "aten::cat");
  });
}

// Gives each reader of a growing list a list of its own, as tracing would have recorded it. Torch's
// pass does not help once the list has been read.
void freeze_list(Node* list) {
  std::vector<Node*> users;
  for (const torch::jit::Use& use : list->output()->uses()) users.push_back(use.user);
  const auto by_place = [](const Node* a, const Node* b) { return a->isBefore(b); };
  std::sort(users.begin(), users.end(), by_place);
  std::vector<Value*> items(list->inputs().begin(), list->inputs().end());
  for (Node* user : users) {
    if (is_kind(user, "aten::append")) {
      items.push_back(user->input(1));
      user->destroy();
      continue;
    }
    Graph* graph = list->owningGraph();
    Node* snapshot = graph->create(torch::jit::prim::ListConstruct, items);
    snapshot->insertBefore(user)->output()->setType(list->output()->type());
    user->replaceInput(0, snapshot->output());
  }
}

void freeze_lists(Graph& graph) {
  std::vector<Node*> lists;
  for_each_node(graph.block(), [&](Node* node) {
    if (is_growing_list(node)) lists.push_back(node);
  });
  for (Node* list : lists) freeze_list(list);
}

// Returns true if a node between both, in their block, changes one of its arguments.
bool is_change_between(const Node* first, const Node* last) {
  if (first->owningBlock() != last->owningBlock()) return true;
  for (const Node* node = first->next(); node != last; node = node->next()) {
    const auto* schema = node->maybeSchema();
    const bool changes = schema == nullptr ? node->hasSideEffects() : schema->is_mutable();
    if (changes || !node->blocks().empty()) return true;
  }
  return false;
}

// Gives a reader behind a change in place a list of its own. Torch's elimination of dead code
// removes a change that is seen through an older list only.
void give_own_list(Node* list) {
  for (const torch::jit::Use& use : std::vector(list->output()->uses())) {
    if (!is_change_between(list, use.user)) continue;
    Node* own = list->owningGraph()->create(torch::jit::prim::ListConstruct, list->inputs());
    own->insertBefore(use.user)->output()->setType(list->output()->type());
    use.user->replaceInput(use.offset, own->output());
  }
}

void give_own_lists(Graph& graph) {
  std::vector<Node*> lists;
  for_each_node(graph.block(), [&](Node* node) {
    const bool holds_tensors = is_kind(node, "prim::ListConstruct") && !node->inputs().empty() &&
                               is_tensor(node->input(0));
    if (holds_tensors && is_fixed_list(node->output())) lists.push_back(node);
  });
  for (Node* list : lists) give_own_list(list);
}

bool has_large_loop(Graph& graph) {
  bool is_large = false;
  for_each_node(graph.block(), [&](Node* node) {
    if (!is_kind(node, "prim::Loop")) return;
    const auto count = constant_number(node->input(0));
    if (!count) return;
    std::int64_t nodes = 0;
    for_each_node(node->blocks().at(0), [&](Node*) { ++nodes; });
    is_large = is_large || *count * static_cast<double>(nodes) > kMaxUnrolledNodes;
  });
  return is_large;
}

void unroll_small_loops(std::shared_ptr<Graph>& graph) {
  if (!has_large_loop(*graph)) torch::jit::UnrollConstantLoops(graph);
}

// If TORCHALGO_TRACE_IMPORT is set, prints to stderr what the pass of its scope makes of the graph.
class Trace {
 public:
  Trace(const char* pass, const Graph& graph) : pass_(pass), graph_(graph) {
    if (is_on()) before_ = graph.toString(false);
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
  const Graph& graph_;
  std::string before_;
};

using GraphPtr = std::shared_ptr<Graph>;
struct Pass {
  const char* name;
  void (*run)(GraphPtr&);
};

constexpr Pass kPasses[] = {
    {"constants, for the counts of loops",
     [](GraphPtr& graph) { torch::jit::ConstantPropagation(graph); }},
    {"loops", unroll_small_loops},
    {"growing lists", [](GraphPtr& graph) { freeze_lists(*graph); }},
    {"mutated lists", [](GraphPtr& graph) { torch::jit::RemoveListMutation(graph); }},
    {"lists behind changes in place", [](GraphPtr& graph) { give_own_lists(*graph); }},
    {"mutated tensors", [](GraphPtr& graph) { torch::jit::RemoveTensorMutation(graph); }},
    {"dropout", [](GraphPtr& graph) { remove_dropout(*graph); }},
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
    const Trace trace(pass.name, *graph);
    pass.run(graph);
  }
}

// Scripted modules check the rank of their input, and its sizes. If a check stayed in the graph, it
// would read a tensor and fix its layout.
bool resolve_checks(Graph& graph, const SeenTensors& seen) {
  const Trace trace("ranks of tensors, and checks of sizes", graph);
  bool is_changed = false;
  for_each_node(graph.block(), [&](Node* node) {
    const std::optional<c10::IValue> result = known_result(node, seen);
    if (!result) return;
    const torch::jit::WithInsertPoint at(node);
    node->output()->replaceAllUsesWith(graph.insertConstant(*result));
    node->destroy();
    is_changed = true;
  });
  return is_changed;
}

bool resolve_branches(GraphPtr& graph, const std::vector<c10::IValue>& arguments) {
  const Trace trace("branches on sizes", *graph);
  return resolve_size_branches(graph, arguments);
}

void drop_slices(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("slices that take everything", *graph);
  remove_whole_slices(graph, seen);
}

void inline_calls(Graph& graph) {
  const Trace trace("inlining", graph);
  torch::jit::Inline(graph);
}

bool replace_in_place_ops(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("in-place ops that nobody else sees", *graph);
  if (!functionalize(*graph, seen)) return false;
  torch::jit::EliminateDeadCode(graph);
  return true;
}

bool keep_vectors(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("views around the linear layers of squeeze-and-excitation", *graph);
  return keep_pooled_vectors(graph, seen);
}

bool name_norms(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("batch norms of tokens", *graph);
  return name_token_norms(graph, seen);
}

bool bring_channels_first(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("permutes around linear layers", *graph);
  return move_channels_first(graph, seen);
}

bool name_attention(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("attention", *graph);
  return fuse_attention(graph, seen);
}

bool fold_constants(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("products and sums with constants into convolutions", *graph);
  return fold_affine(graph, seen);
}

bool merge_sums(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("sums of convolutions of one tensor", *graph);
  return merge_branches(graph, seen);
}

bool name_channel_ops(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("splits and shuffles of channels", *graph);
  return simplify_channel_ops(graph, seen);
}

bool name_activations(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("activations that the model writes down", *graph);
  return name_written_activations(graph, seen);
}

bool name_channel_norms(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("norms over channels that the model writes down", *graph);
  return name_written_norms(graph, seen);
}

void join_pads(GraphPtr& graph) {
  const Trace trace("zeros around the inputs of convolutions", *graph);
  fold_pads(graph);
}

bool share_no_pads(GraphPtr& graph) {
  const Trace trace("zeros that several convolutions read", *graph);
  return copy_pads(graph);
}

void drop_identities(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("ops that return their input", *graph);
  remove_identities(graph, seen);
}

void give_norms_one_form(GraphPtr& graph, SeenTensors& seen) {
  const Trace trace("norms without weights, and norms of each channel", *graph);
  complete_norms(graph, seen);
}

bool take_apart(GraphPtr& graph, const SeenTensors& seen) {
  const Trace trace("stacks of images", *graph);
  return take_stacks_apart(graph, seen);
}

}  // namespace

SeenTensors simplify(std::shared_ptr<Graph>& graph, const std::vector<c10::IValue>& arguments) {
  inline_calls(*graph);
  run_passes(graph);
  SeenTensors seen = see_tensors(graph, arguments);
  // Resolving a branch may uncover another check inside it; each round removes nodes, so it ends.
  while (resolve_checks(*graph, seen) || resolve_branches(graph, arguments)) {
    run_passes(graph);
    seen = see_tensors(graph, arguments);
  }
  drop_slices(graph, seen);      // it makes no tensors that were not seen
  drop_identities(graph, seen);  // nor does this pass
  if (replace_in_place_ops(graph, seen)) seen = see_tensors(graph, arguments);
  if (keep_vectors(graph, seen)) seen = see_tensors(graph, arguments);
  if (name_activations(graph, seen)) seen = see_tensors(graph, arguments);
  if (take_apart(graph, seen)) seen = see_tensors(graph, arguments);
  if (name_attention(graph, seen)) seen = see_tensors(graph, arguments);
  drop_identities(graph, seen);
  join_pads(graph);  // as the pass before, it makes no tensors that were not seen
  give_norms_one_form(graph, seen);
  if (name_norms(graph, seen)) seen = see_tensors(graph, arguments);
  // A norm may read the result of another one. Each round removes nodes, so it ends.
  while (name_channel_norms(graph, seen)) seen = see_tensors(graph, arguments);
  if (bring_channels_first(graph, seen)) seen = see_tensors(graph, arguments);
  // A merged convolution may take what follows the sum. Each round removes nodes, so it ends.
  bool is_merged = true;
  while (is_merged) {
    if (fold_constants(graph, seen)) seen = see_tensors(graph, arguments);
    is_merged = merge_sums(graph, seen);
    if (is_merged) seen = see_tensors(graph, arguments);
  }
  if (share_no_pads(graph)) seen = see_tensors(graph, arguments);
  if (name_channel_ops(graph, seen)) seen = see_tensors(graph, arguments);
  return seen;
}

}  // namespace torchalgo
