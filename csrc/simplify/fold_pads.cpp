// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "simplify/rewrite_each.h"
#include "torchscript/constants.h"
#include "torchscript/zero_padding.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

// Returns true for a 2-D convolution in the block of the node that makes the zeros.
bool is_conv_2d(Node conv, Node zeros) {
  const bool has_flag = conv.is("aten::_convolution", "aten::convolution");
  if (!has_flag && !conv.is("aten::conv2d")) return false;
  if (has_flag && constant_bool(conv.argument("transposed")) != false) return false;
  const auto weight = constant_tensor(conv.argument("weight"));
  return weight && weight->dim() == 4 && conv.block() == zeros.block();
}

// Returns the readers of the zeros. Returns none if one of them is no 2-D convolution.
std::vector<Node> readers_of(Node zeros) {
  std::vector<Node> readers;
  for (const script::Use& use : zeros.output().uses()) {
    if (use.offset != 0 || !is_conv_2d(use.user, zeros)) return {};
    readers.push_back(use.user);
  }
  return readers;
}

// Zeros around the image of 2-D convolutions, which are their only readers.
struct Pad : GraphPart {
  ZeroPadding zeros;
  std::vector<Node> readers;
};

std::optional<Pad> find_pad(Node node) {
  const std::optional<ZeroPadding> zeros = zero_padding(node);
  if (!zeros) return std::nullopt;
  const std::vector<Node> readers = readers_of(node);
  if (readers.empty()) return std::nullopt;
  return Pad{{node, {node.input(0)}}, *zeros, readers};
}

// Returns the convolution's padding, or nullopt if it is no list of constants.
std::optional<std::vector<std::int64_t>> padding_of(Node conv) {
  auto padding = constant_ints(conv.argument("padding"));
  if (!padding || padding->empty()) return std::nullopt;
  padding->resize(2, padding->back());
  return padding;
}

void add_to_padding(Node conv, const ZeroPadding& zeros) {
  std::vector<std::int64_t> padding = *padding_of(conv);
  for (const std::size_t i : {0, 1}) padding[i] += zeros.before[i];
  conv.replace_argument("padding", script::Builder(conv).constant(padding));
}

}  // namespace

bool fold_pads(const Graph& graph) {
  return rewrite_each(graph, find_pad, [](const Pad& pad, const auto&) -> Value {
    const auto& readers = pad.readers;
    if (pad.zeros.before != pad.zeros.after) return nullptr;
    if (!std::all_of(readers.begin(), readers.end(), padding_of)) return nullptr;
    for (const Node conv : readers) add_to_padding(conv, pad.zeros);
    return pad.reads[0];
  });
}

bool copy_pads(const Graph& graph) {
  return rewrite_each(graph, find_pad, [](const Pad& pad, const auto&) -> Value {
    for (std::size_t i = 1; i < pad.readers.size(); ++i) {
      const script::Builder at(pad.readers[i]);
      pad.readers[i].replace_input(0, at.copy(pad.last, {}).output());
    }
    return pad.readers.size() > 1 ? pad.last.output() : nullptr;
  });
}

}  // namespace torchalgo
