// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/fold_pads.h"

#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "torchscript/constants.h"
#include "torchscript/zero_padding.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

// Returns true for a 2-D convolution in the block of the node that makes the zeros.
bool is_conv_2d(const Node* conv, const Node* zeros) {
  const bool has_flag = is_kind(conv, "aten::_convolution") || is_kind(conv, "aten::convolution");
  if (!has_flag && !is_kind(conv, "aten::conv2d")) return false;
  if (has_flag && constant_bool(conv->namedInput("transposed")) != false) return false;
  const auto weight = constant_tensor(conv->namedInput("weight"));
  return weight && weight->dim() == 4 && conv->owningBlock() == zeros->owningBlock();
}

// Returns the readers of the zeros. Returns none if one of them is no 2-D convolution.
std::vector<Node*> readers_of(const Node* zeros) {
  std::vector<Node*> readers;
  for (const torch::jit::Use& use : zeros->output()->uses()) {
    if (use.offset != 0 || !is_conv_2d(use.user, zeros)) return {};
    readers.push_back(use.user);
  }
  return readers;
}

// Calls change(node, zeros, readers) for each node that only makes zeros around the image of 2-D
// convolutions and shares no memory that is written to. Returns true if one of the calls does.
template <typename Change>
bool for_each_pad(std::shared_ptr<Graph>& graph, const Change& change) {
  std::optional<torch::jit::AliasDb> aliases;
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    const std::optional<ZeroPadding> zeros = zero_padding(node);
    if (!zeros) continue;
    const std::vector<Node*> readers = readers_of(node);
    if (readers.empty()) continue;
    if (!aliases) aliases.emplace(graph);
    if (aliases->hasWriters(node->input(0)) || aliases->hasWriters(node->output())) continue;
    is_changed |= change(node, *zeros, readers);
  }
  if (is_changed) torch::jit::EliminateDeadCode(graph);
  return is_changed;
}

// Returns the convolution's padding, or nullopt if it is no list of constants.
std::optional<std::vector<std::int64_t>> padding_of(const Node* conv) {
  auto padding = constant_ints(conv->namedInput("padding"));
  if (!padding || padding->empty()) return std::nullopt;
  padding->resize(2, padding->back());
  return padding;
}

void add_to_padding(Graph& graph, Node* conv, const ZeroPadding& zeros, Value* src) {
  std::vector<std::int64_t> padding = *padding_of(conv);
  for (const std::size_t i : {0, 1}) padding[i] += zeros.before[i];
  const WithInsertPoint at(conv);
  conv->replaceInput(0, src);
  conv->replaceInput(*conv->schema().argumentIndexWithName("padding"),
                     graph.insertConstant(padding));
}

}  // namespace

bool fold_pads(std::shared_ptr<Graph>& graph) {
  return for_each_pad(
      graph, [&](Node* node, const ZeroPadding& zeros, const std::vector<Node*>& readers) {
        if (zeros.before != zeros.after || !std::all_of(readers.begin(), readers.end(), padding_of))
          return false;
        for (Node* conv : readers) add_to_padding(*graph, conv, zeros, node->input(0));
        return true;
      });
}

bool copy_pads(std::shared_ptr<Graph>& graph) {
  return for_each_pad(
      graph, [&](Node* node, const ZeroPadding&, const std::vector<Node*>& readers) {
        for (std::size_t i = 1; i < readers.size(); ++i) {
          Node* const copy = graph->createClone(node, [](Value* value) { return value; });
          copy->insertBefore(readers[i]);
          readers[i]->replaceInput(0, copy->output());
        }
        return readers.size() > 1;
      });
}

}  // namespace torchalgo
