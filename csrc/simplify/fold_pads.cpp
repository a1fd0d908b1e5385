// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/fold_pads.h"

#include <ATen/ops/constant_pad_nd.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;
using torch::jit::WithInsertPoint;

namespace {

using Sizes = std::vector<std::int64_t>;

struct Pad {
  std::array<std::int64_t, 2> before, after;  // of h and w
};

// Returns the rows and columns of zeros that the node adds, or nullopt if it does something else.
std::optional<Pad> read_pad(const Node* node) {
  const bool has_mode = is_kind(node, "aten::pad");
  if (!has_mode && !is_kind(node, "aten::constant_pad_nd")) return std::nullopt;
  if (has_mode) {
    const auto mode = torch::jit::toIValue(node->namedInput("mode"));
    if (!mode || !mode->isString() || mode->toStringRef() != "constant") return std::nullopt;
  }
  const Value* value = node->namedInput("value");
  if (!is_none(value) && constant_number(value) != 0.0) return std::nullopt;
  const auto sizes = constant_ints(node->namedInput("pad"));
  if (!sizes || sizes->size() != 4) return std::nullopt;
  if (std::any_of(sizes->begin(), sizes->end(), [](auto size) { return size < 0; })) {
    return std::nullopt;
  }
  const Sizes& wwhh = *sizes;  // the last dimension is first
  return Pad{{wwhh[2], wwhh[0]}, {wwhh[3], wwhh[1]}};
}

// A convolution of a padded tensor, and what it becomes without the padding.
struct Reader {
  Node* conv;
  Sizes padding;
  at::Tensor weight;  // undefined if the filter stays
};

std::optional<Reader> read_reader(Node* conv, const Pad& pad) {
  const bool has_flag = is_kind(conv, "aten::_convolution") || is_kind(conv, "aten::convolution");
  if (!has_flag && !is_kind(conv, "aten::conv2d")) return std::nullopt;
  if (has_flag && constant_bool(conv->namedInput("transposed")) != false) return std::nullopt;
  const auto weight = constant_tensor(conv->namedInput("weight"));
  auto padding = constant_ints(conv->namedInput("padding"));
  const auto dilation = constant_ints(conv->namedInput("dilation"));
  if (!weight || weight->dim() != 4 || !padding || padding->empty() || !dilation) {
    return std::nullopt;
  }
  padding->resize(2, padding->back());
  const bool is_dilated =
      std::any_of(dilation->begin(), dilation->end(), [](auto d) { return d > 1; });
  Reader reader{conv, *padding, {}};
  Sizes zeros;  // to be added to the filter; the last dimension is first
  for (const int i : {1, 0}) {
    const std::int64_t longer = std::max(pad.before[i], pad.after[i]);
    reader.padding[i] += longer;
    // More zeros in front of the image than were asked for need as many in front of the filter.
    zeros.push_back(longer - pad.before[i]);
    zeros.push_back(longer - pad.after[i]);
    const std::int64_t added = 2 * longer - pad.before[i] - pad.after[i];
    if (added == 0) continue;
    if (is_dilated || added != 1 || weight->size(2 + i) != 2) return std::nullopt;
  }
  if (std::any_of(zeros.begin(), zeros.end(), [](auto count) { return count > 0; })) {
    reader.weight = at::constant_pad_nd(*weight, zeros);
  }
  return reader;
}

// Returns all readers of the padded tensor; none if one of them needs the tensor.
std::vector<Reader> readers_of(Value* padded, const Pad& pad) {
  std::vector<Reader> readers;
  for (const torch::jit::Use& use : padded->uses()) {
    if (use.offset != 0 || use.user->owningBlock() != padded->node()->owningBlock()) return {};
    auto reader = read_reader(use.user, pad);
    if (!reader) return {};
    readers.push_back(std::move(*reader));
  }
  return readers;
}

void take_pad(Graph& graph, const Reader& reader, Value* src) {
  Node* const conv = reader.conv;
  const WithInsertPoint at(conv);
  const auto input = [&](const char* name) { return *conv->schema().argumentIndexWithName(name); };
  conv->replaceInput(0, src);
  conv->replaceInput(input("padding"), graph.insertConstant(reader.padding));
  if (!reader.weight.defined()) return;
  const Value* old = conv->namedInput("weight");
  Value* const weight = graph.insertConstant(reader.weight);
  if (old->hasDebugName()) weight->setDebugName(old->debugName());  // it names the layer
  conv->replaceInput(input("weight"), weight);
}

}  // namespace

bool fold_pads(std::shared_ptr<Graph>& graph) {
  std::optional<torch::jit::AliasDb> aliases;
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    const std::optional<Pad> pad = read_pad(node);
    if (!pad) continue;
    const std::vector<Reader> readers = readers_of(node->output(), *pad);
    if (readers.empty()) continue;
    if (!aliases) aliases.emplace(graph);
    if (aliases->hasWriters(node->input(0)) || aliases->hasWriters(node->output())) continue;
    for (const Reader& reader : readers) take_pad(*graph, reader, node->input(0));
    is_changed = true;
  }
  if (is_changed) torch::jit::EliminateDeadCode(graph);
  return is_changed;
}

}  // namespace torchalgo
