// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/written_norms.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "simplify/fixed_channels.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

// A norm of the graph. The constants are undefined if the model has none.
struct WrittenNorm {
  LayerNormKind kind = LayerNormKind::kLayer;
  Value* src = nullptr;
  Node* last = nullptr;  // makes the result
  std::int64_t dim = 0;
  double eps = 0;
  at::Tensor scale, shift;  // [c]
};

// A mean or a variance over one dimension of a tensor. The dimension stays, with the size 1.
struct Statistic {
  const Value* src = nullptr;  // the tensor
  std::int64_t dim = 0;
};

// Returns the operand beside a number in a commutative op, or null.
const Value* beside_number(const Node* node, double* number) {
  for (const std::size_t i : {0, 1}) {
    const auto found = constant_scalar(node->input(i));
    if (found && is_tensor(node->input(1 - i))) {
      *number = *found;
      return node->input(1 - i);
    }
  }
  return nullptr;
}

// Returns x if the value is x squared, or null.
const Value* square_of(const Value* value) {
  const Node* node = value->node();
  if (is_kind(node, "aten::square")) return node->input(0);
  const bool is_power = is_kind(node, "aten::pow") && constant_scalar(node->input(1)) == 2.0;
  const bool is_product = is_kind(node, "aten::mul") && node->input(0) == node->input(1);
  return is_power || is_product ? node->input(0) : nullptr;
}

// Returns true for a sum or a difference of tensors whose second operand has the factor 1.
bool is_unscaled(const Node* node) {
  return node->hasNamedInput("alpha") && constant_number(node->namedInput("alpha")) == 1.0;
}

class WrittenNormFinder {
 public:
  WrittenNormFinder(const std::shared_ptr<Graph>& graph, const SeenTensors& seen)
      : aliases_(graph), seen_(seen) {}

  // Returns the norm whose result the node makes before it is scaled, with what follows.
  std::optional<WrittenNorm> find(Node* node) const {
    std::optional<WrittenNorm> norm = read_quotient(node);
    if (!norm) return std::nullopt;
    const SeenTensor* const src = find_dense(norm->src);
    const SeenTensor* const result = find_dense(node->output());
    if (src == nullptr || result == nullptr || is_written(node->output(), norm->src) ||
        src->scalar_type != result->scalar_type || src->sizes != result->sizes ||
        !(norm->eps >= 0 && norm->eps <= 1)) {
      return std::nullopt;
    }
    take_constants(*norm, *src);
    if (aliases_.hasWriters(norm->last->output()) || !fixes_channels(*norm, *src)) {
      return std::nullopt;
    }
    return norm;
  }

 private:
  // Returns true if a tensor is changed in place, among those that the value is computed of down to
  // `src`.
  bool is_written(const Value* value, const Value* src) const {
    if (!is_tensor(value) || constant_tensor(value)) return false;
    if (aliases_.hasWriters(value)) return true;
    if (value == src) return false;
    const auto inputs = value->node()->inputs();
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const Value* input) { return is_written(input, src); });
  }

  // Returns the description of an image, a signal or tokens in floating point, or null.
  const SeenTensor* find_dense(const Value* value) const {
    const auto it = seen_.find(value);
    if (it == seen_.end() || !it->second.is_always_so || !it->second.is_strided) return nullptr;
    const std::size_t rank = it->second.sizes.size();
    const bool has_channels = rank == 3 || rank == 4;
    return has_channels && dtype_of_scalar(it->second.scalar_type) ? &it->second : nullptr;
  }

  // Reads x * rsqrt(s + eps) and x / sqrt(s + eps).
  std::optional<WrittenNorm> read_quotient(Node* node) const {
    const bool divides = is_kind(node, "aten::div") && node->inputs().size() == 2;
    if (!divides && !is_kind(node, "aten::mul")) return std::nullopt;
    for (const std::size_t i : {0, 1}) {
      if (divides && i == 1) break;
      const Value* const root = node->input(1 - i);
      if (!is_tensor(node->input(i))) continue;
      if (!is_kind(root->node(), divides ? "aten::sqrt" : "aten::rsqrt")) continue;
      if (!has_one_reader(root)) continue;
      return read_parts(node, node->input(i), root->node()->input(0));
    }
    return std::nullopt;
  }

  std::optional<WrittenNorm> read_parts(Node* node, Value* x, const Value* under_root) const {
    const Node* const sum = under_root->node();
    WrittenNorm norm;
    norm.last = node;
    if (!is_kind(sum, "aten::add") || !is_unscaled(sum)) return std::nullopt;
    const Value* const spread = beside_number(sum, &norm.eps);
    if (spread == nullptr) return std::nullopt;
    const std::optional<Statistic> centered_at = read_center(x);
    const std::optional<Statistic> mean = read_mean(spread);
    const Value* const squared = mean ? square_of(mean->src) : nullptr;
    const auto made = [&](LayerNormKind kind, const Value* src, std::int64_t dim) {
      norm.kind = kind, norm.src = const_cast<Value*>(src), norm.dim = dim;
      return norm;
    };
    if (squared == x) {
      const bool is_layer = centered_at && centered_at->dim == mean->dim;
      return is_layer ? made(LayerNormKind::kLayer, centered_at->src, mean->dim)
                      : made(LayerNormKind::kRms, x, mean->dim);
    }
    double correction = 0;
    const std::optional<Statistic> variance = read_variance(spread, &correction);
    if (!variance) return std::nullopt;
    if (variance->src == x && correction == 1) {
      return made(LayerNormKind::kVariance, x, variance->dim);
    }
    const bool is_layer = centered_at && variance->src == centered_at->src && correction == 0 &&
                          centered_at->dim == variance->dim;
    return is_layer ? std::optional(made(LayerNormKind::kLayer, variance->src, variance->dim))
                    : std::nullopt;
  }

  // Returns y if x is y minus its mean.
  std::optional<Statistic> read_center(const Value* x) const {
    const Node* const sub = x->node();
    if (!is_kind(sub, "aten::sub") || !is_unscaled(sub)) return std::nullopt;
    const std::optional<Statistic> mean = read_mean(sub->input(1));
    return mean && mean->src == sub->input(0) ? mean : std::nullopt;
  }

  std::optional<Statistic> read_mean(const Value* value) const {
    const auto found = with_kept_dim(value, "aten::mean");
    if (!found || !is_none(found->node->namedInput("dtype"))) return std::nullopt;
    return found->statistic;
  }

  // Sets the number that the variance takes from the number of channels in its denominator.
  std::optional<Statistic> read_variance(const Value* value, double* correction) const {
    const auto found = with_kept_dim(value, "aten::var");
    if (!found) return std::nullopt;
    if (found->node->hasNamedInput("unbiased")) {
      const auto is_unbiased = constant_bool(found->node->namedInput("unbiased"));
      if (!is_unbiased) return std::nullopt;
      *correction = *is_unbiased ? 1 : 0;
      return found->statistic;
    }
    const Value* const given = found->node->namedInput("correction");
    const auto number = is_none(given) ? 1.0 : constant_scalar(given);
    if (!number) return std::nullopt;
    *correction = *number;
    return found->statistic;
  }

  struct KeptDim {
    const Node* node;
    Statistic statistic;
  };

  // Reads an op over one dimension that keeps it, perhaps by unsqueeze.
  std::optional<KeptDim> with_kept_dim(const Value* value, const char* kind) const {
    const Node* node = value->node();
    std::optional<double> added;
    if (is_kind(node, "aten::unsqueeze")) {
      added = constant_number(node->input(1));
      node = node->input(0)->node();
      if (!added) return std::nullopt;
    }
    if (!is_kind(node, kind) || !node->hasNamedInput("dim") || !node->hasNamedInput("keepdim")) {
      return std::nullopt;
    }
    const auto dims = constant_ints(node->namedInput("dim"));
    const auto keeps = constant_bool(node->namedInput("keepdim"));
    const auto rank = rank_of(node->input(0), seen_);
    if (!dims || dims->size() != 1 || !keeps || !rank || *keeps == added.has_value()) {
      return std::nullopt;
    }
    const auto counted = [&](std::int64_t dim) { return dim < 0 ? dim + *rank : dim; };
    const std::int64_t dim = counted(dims->front());
    if (added && counted(static_cast<std::int64_t>(*added)) != dim) return std::nullopt;
    if (dim != 1 && dim != *rank - 1) return std::nullopt;
    return KeptDim{node, {node->input(0), dim}};
  }

  // Returns the other operand as a vector if it is a constant with one number per channel.
  static std::optional<at::Tensor> per_channel(const Value* operand, const WrittenNorm& norm,
                                               const SeenTensor& src) {
    const std::optional<at::Tensor> tensor = constant_tensor(operand);
    const std::int64_t rank = std::ssize(src.sizes);
    if (!tensor || tensor->scalar_type() != src.scalar_type || tensor->dim() > rank) {
      return std::nullopt;
    }
    const std::int64_t at = norm.dim - (rank - tensor->dim());
    const bool fits =
        at >= 0 && tensor->size(at) == src.sizes[norm.dim] && tensor->numel() == tensor->size(at);
    return fits ? std::optional(tensor->reshape({-1}).contiguous()) : std::nullopt;
  }

  // Takes the product and the sum that follow, if nothing else reads what is between.
  static void take_constants(WrittenNorm& norm, const SeenTensor& src) {
    const auto next = [&](const char* kind) -> std::optional<at::Tensor> {
      const auto& uses = norm.last->output()->uses();
      if (uses.size() != 1 || !is_kind(uses[0].user, kind)) return std::nullopt;
      const Node* const user = uses[0].user;
      if (user->owningBlock() != norm.last->owningBlock()) return std::nullopt;  // as in a loop
      if (is_kind(user, "aten::add") && !is_unscaled(user)) return std::nullopt;
      return per_channel(user->input(1 - uses[0].offset), norm, src);
    };
    if (const auto scale = next("aten::mul")) {
      norm.scale = *scale;
      norm.last = norm.last->output()->uses()[0].user;
    }
    if (const auto shift = next("aten::add")) {
      norm.shift = *shift;
      norm.last = norm.last->output()->uses()[0].user;
    }
  }

  // Returns true if the graph fixes the number of channels for all inputs.
  static bool fixes_channels(const WrittenNorm& norm, const SeenTensor& src) {
    if (norm.scale.defined() || norm.shift.defined()) return true;
    if (norm.dim == 1) {
      return has_fixed_channels(norm.src, src.sizes) ||
             is_read_by_convolution(norm.last->output(), src.sizes);
    }
    const Node* const permute = norm.src->node();
    if (!is_permute(permute, {0, 2, 3, 1})) return false;
    const std::vector<std::int64_t> image = {src.sizes[0], src.sizes[3], src.sizes[1],
                                             src.sizes[2]};
    return has_fixed_channels(permute->input(0), image);
  }

  torch::jit::AliasDb aliases_;
  const SeenTensors& seen_;
};

}  // namespace

Value* insert_channel_norm(Graph& graph, LayerNormKind kind, Value* src, const at::Tensor& scale,
                           const at::Tensor& shift, double eps, std::int64_t dim) {
  return graph.insert(c10::Symbol::fromQualString("torchalgo::channel_norm"),
                      {src, std::string(to_string(kind)), scale.contiguous(),
                       shift.defined() ? shift : at::zeros_like(scale), eps, dim});
}

bool name_written_norms(std::shared_ptr<Graph>& graph, const SeenTensors& seen) {
  std::optional<WrittenNormFinder> finder;
  bool is_changed = false;
  const std::vector<Node*> nodes(graph->nodes().begin(), graph->nodes().end());
  for (Node* node : nodes) {
    if (!is_kind(node, "aten::mul") && !is_kind(node, "aten::div")) continue;
    if (!finder) finder.emplace(graph, seen);
    const std::optional<WrittenNorm> norm = finder->find(node);
    if (!norm) continue;
    const SeenTensor& src = seen.at(norm->src);
    const auto options = at::TensorOptions().dtype(src.scalar_type).device(src.device);
    const at::Tensor scale =
        norm->scale.defined() ? norm->scale : at::ones(src.sizes[norm->dim], options);
    const torch::jit::WithInsertPoint at(norm->last);
    Value* const made = insert_channel_norm(*graph, norm->kind, norm->src, scale, norm->shift,
                                            norm->eps, norm->dim);
    made->node()->copyMetadata(norm->last);
    norm->last->output()->replaceAllUsesWith(made);
    is_changed = true;
  }
  if (is_changed) torch::jit::EliminateDeadCode(graph);
  return is_changed;
}

}  // namespace torchalgo
