// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "simplify/affine.h"
#include "simplify/constant_conv.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

// A term of a sum or a difference.
struct Term {
  Value value;
  double sign;
};

// A convolution without dilation, or a linear layer, whose result only the sum reads.
struct Branch {
  ConstantConv conv;
  Sizes stride, padding;
  double sign;
};

std::optional<Branch> read_branch(const Term& term) {
  const auto conv = read_constant_layer(term.value.node());
  if (!conv || conv->is_transposed || term.value.uses().size() != 1) return std::nullopt;
  if (conv->node.is("aten::linear")) return Branch{*conv, {}, {}, term.sign};
  const auto window = [&](const char* name) {
    auto sizes = constant_ints(conv->node.argument(name));
    const auto rank = static_cast<std::size_t>(conv->weight.dim() - 2);
    if (sizes && sizes->size() == 1) sizes->resize(rank, sizes->at(0));
    return sizes && sizes->size() == rank ? *sizes : Sizes{};
  };
  const Sizes dilation = window("dilation");
  Branch branch{*conv, window("stride"), window("padding"), term.sign};
  const bool is_dense =
      std::all_of(dilation.begin(), dilation.end(), [](auto d) { return d == 1; });
  if (dilation.empty() || branch.stride.empty() || branch.padding.empty() || !is_dense)
    return std::nullopt;
  return branch;
}

// Returns by how much the filter is larger than what its padding on both sides makes up for. Two
// filters for which this is equal in all dimensions have a common centre, and results of equal
// sizes for every input.
Sizes excess(const Branch& branch) {
  Sizes sizes;
  for (std::size_t i = 0; i < branch.padding.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i) + 2;
    sizes.push_back(branch.conv.weight.size(dim) - 2 * branch.padding[i]);
  }
  return sizes;
}

// Returns weights with zeros around them, as a filter with the padding `wanted`.
at::Tensor with_padding(const at::Tensor& weight, const Sizes& padding, const Sizes& wanted) {
  Sizes rims;  // of the last dimension first
  for (std::size_t i = padding.size(); i-- > 0;) {
    rims.insert(rims.end(), 2, wanted[i] - padding[i]);
  }
  return at::constant_pad_nd(weight, rims);
}

// The weights and the bias of a term, in f64 and with its sign.
at::Tensor weight_of(const Branch& branch) { return as_f64(branch.conv.weight) * branch.sign; }

at::Tensor bias_of(const Branch& branch) {
  const ConstantConv& conv = branch.conv;
  if (!conv.bias.defined()) return at::zeros({result_channels(conv)}, at::kDouble);
  return as_f64(conv.bias) * branch.sign;
}

class Merger {
 public:
  Merger(const Graph& graph, const SeenTensors& seen)
      : graph_(graph), writes_(graph), seen_(seen) {}

  bool run() {
    bool is_changed = false;
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) {
      const bool is_difference = node.is("aten::sub");
      if ((!is_difference && !node.is("aten::add")) || !is_tensor(node.input(1))) continue;
      if (constant_number(node.input(2)) != 1.0) continue;
      const double second = is_difference ? -1 : 1;
      is_changed |= merge(node, {node.input(0), 1}, {node.input(1), second}) ||
                    merge(node, {node.input(1), second}, {node.input(0), 1});
    }
    if (is_changed) graph_.remove_dead_code();
    return is_changed;
  }

 private:
  // Adds `other` to the convolution that makes `term`, if that is possible.
  bool merge(Node sum, const Term& term, const Term& other) {
    const std::optional<Branch> branch = read_branch(term);
    if (!branch) return false;
    const Node conv = branch->conv.node;
    if (conv.block() != sum.block() || writes_.has(conv.input(0))) return false;
    if (const std::optional<Branch> second = read_branch(other)) {
      return merge_convolutions(sum, *branch, *second);
    }
    return merge_identity(sum, *branch, other);
  }

  static bool merge_convolutions(Node sum, const Branch& a, const Branch& b) {
    const bool is_alike = a.conv.node.input(0) == b.conv.node.input(0) &&
                          a.conv.node.kind() == b.conv.node.kind() &&
                          a.conv.node.block() == b.conv.node.block() && a.stride == b.stride &&
                          a.conv.groups == b.conv.groups && excess(a) == excess(b) &&
                          a.conv.weight.scalar_type() == b.conv.weight.scalar_type() &&
                          result_channels(a.conv) == result_channels(b.conv);
    if (!is_alike) return false;
    // The larger filter stays. If one is larger in height and the other in width, none holds both.
    const bool is_a_larger = covers(a, b);
    if (!is_a_larger && !covers(b, a)) return false;
    const Branch& large = is_a_larger ? a : b;
    const Branch& small = is_a_larger ? b : a;
    const at::Tensor added = with_padding(weight_of(small), small.padding, large.padding);
    add_weights(large, added, bias_of(small));
    replace_sum(sum, large.conv.node);
    return true;
  }

  static bool covers(const Branch& large, const Branch& small) {
    return std::equal(large.padding.begin(), large.padding.end(), small.padding.begin(),
                      std::greater_equal<>());
  }

  // `other` is the tensor that the convolution reads, or an affine function of it.
  bool merge_identity(Node sum, const Branch& branch, const Term& term) const {
    const Value other = term.value;
    const ConstantConv& conv = branch.conv;
    if (conv.node.is("aten::linear")) return false;
    const Value src = conv.node.input(0);
    const auto seen = seen_.find(src);
    const std::int64_t channels = conv.weight.size(1) * conv.groups;
    if (seen == seen_.end() || std::ssize(seen->second.sizes) != conv.weight.dim() ||
        seen->second.sizes[1] != channels || result_channels(conv) != channels) {
      return false;
    }
    std::optional<Affine> affine;
    if (other == src) {
      // Any other convolution adds a residual in its call as it is.
      if (conv.groups != channels) return false;
      const auto f64 = at::TensorOptions(at::kDouble);
      affine = Affine{src, at::ones({channels}, f64), at::zeros({channels}, f64), true, 0};
    } else if (has_one_reader(other)) {
      affine = read_affine(other.node(), seen_);
    }
    const Sizes same(branch.padding.size(), 1);
    if (!affine || affine->src != src || branch.stride != same || excess(branch) != same)
      return false;
    // A 1x1 filter that takes each channel from the channel of the same number.
    const std::int64_t of_group = conv.weight.size(1);
    Sizes sizes(static_cast<std::size_t>(conv.weight.dim()), 1);
    sizes[0] = channels, sizes[1] = of_group;
    const at::Tensor filter = at::zeros(sizes, at::kDouble);
    const at::Tensor matrix = filter.view({channels, of_group});
    for (std::int64_t c = 0; c < channels; ++c) matrix[c][c % of_group] = affine->scale[c];
    const at::Tensor added = with_padding(filter, Sizes(same.size(), 0), branch.padding);
    add_weights(branch, added * term.sign, affine->shift * term.sign);
    replace_sum(sum, conv.node);
    return true;
  }

  static void add_weights(const Branch& branch, const at::Tensor& weight, const at::Tensor& bias) {
    const at::Device device = branch.conv.weight.device();
    replace_weights(branch.conv, (weight_of(branch) + weight).to(device),
                    (bias_of(branch) + bias).to(device));
  }

  // A convolution with fewer readers would not be seen as one that only the sum reads.
  static void replace_sum(Node sum, Node conv) {
    const Value other = sum.input(sum.input(0) == conv.output() ? 1 : 0);
    sum.output().replace_uses(conv.output());
    sum.destroy();
    if (other.uses().empty() && other != conv.input(0)) other.node().destroy();
  }

  const Graph& graph_;
  script::Writes writes_;  // of the graph before the first change, which adds no writer
  const SeenTensors& seen_;
};

}  // namespace

bool merge_branches(const Graph& graph, const SeenTensors& seen) {
  return Merger(graph, seen).run();
}

}  // namespace torchalgo
