// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "simplify/fixed_channels.h"
#include "simplify/insert_layer.h"
#include "simplify/pattern.h"
#include "simplify/rewrite_each.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

// A norm of the graph. The constants are undefined if the model has none.
struct WrittenNorm : GraphPart {
  LayerNormKind kind = LayerNormKind::kLayer;
  std::int64_t dim = 0;
  double eps = 0;
  at::Tensor scale, shift;  // [c]
};

// A mean or a variance over one dimension of a tensor. The dimension stays, with the size 1.
struct Statistic {
  Value src = nullptr;  // the tensor
  std::int64_t dim = 0;
};

// Fits x / sqrt(y).
Pattern quotient() {
  const Pattern x = tensor("x"), y = tensor("y");
  return either({product(x, op("aten::rsqrt", {y})), op("aten::div", {x, op("aten::sqrt", {y})})});
}

// Returns x if the value is x squared, or null.
Value square_of(Value value) {
  Node node = value.node();
  if (node.is("aten::square")) return node.input(0);
  const bool is_power = node.is("aten::pow") && constant_scalar(node.input(1)) == 2.0;
  const bool is_product = node.is("aten::mul") && node.input(0) == node.input(1);
  return is_power || is_product ? node.input(0) : nullptr;
}

// Returns true for a sum or a difference of tensors whose second operand has the factor 1.
bool is_unscaled(Node node) {
  return node.has_argument("alpha") && constant_number(node.argument("alpha")) == 1.0;
}

class WrittenNormFinder {
 public:
  explicit WrittenNormFinder(const SeenTensors& seen) : seen_(seen) {}

  // Returns the norm whose result the node makes before it is scaled, with what follows.
  std::optional<WrittenNorm> find(Node node) const {
    std::optional<WrittenNorm> norm = read_quotient(node);
    if (!norm) return std::nullopt;
    const SeenTensor* const src = find_dense(norm->reads[0]);
    const SeenTensor* const result = find_dense(node.output());
    if (src == nullptr || result == nullptr || src->scalar_type != result->scalar_type ||
        src->sizes != result->sizes || !(norm->eps >= 0 && norm->eps <= 1)) {
      return std::nullopt;
    }
    take_constants(*norm, *src);
    return fixes_channels(*norm, *src) ? norm : std::nullopt;
  }

 private:
  // Returns the description of an image, a signal or tokens in floating point, or null.
  const SeenTensor* find_dense(Value value) const {
    const auto it = seen_.find(value);
    if (it == seen_.end() || !it->second.is_always_so || !it->second.is_strided) return nullptr;
    const std::size_t rank = it->second.sizes.size();
    const bool has_channels = rank == 3 || rank == 4;
    return has_channels && dtype_of_scalar(it->second.scalar_type) ? &it->second : nullptr;
  }

  // Reads x / sqrt(spread + eps).
  std::optional<WrittenNorm> read_quotient(Node node) const {
    const auto whole = match(quotient_, node.output());
    const auto under = whole ? match(sum_, whole->named.at("y")) : std::nullopt;
    if (!under) return std::nullopt;
    const Value x = whole->named.at("x"), spread = under->named.at("spread");
    WrittenNorm norm;
    norm.last = node;
    norm.eps = *constant_scalar(under->named.at("eps"));
    const std::optional<Statistic> centered_at = read_center(x);
    const std::optional<Statistic> mean = read_mean(spread);
    const Value squared = mean ? square_of(mean->src) : nullptr;
    const auto made = [&](LayerNormKind kind, Value src, std::int64_t dim) {
      norm.kind = kind, norm.reads = {src}, norm.dim = dim;
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
  std::optional<Statistic> read_center(Value x) const {
    const Node sub = x.node();
    if (!sub.is("aten::sub") || !is_unscaled(sub)) return std::nullopt;
    const std::optional<Statistic> mean = read_mean(sub.input(1));
    return mean && mean->src == sub.input(0) ? mean : std::nullopt;
  }

  std::optional<Statistic> read_mean(Value value) const {
    const auto found = with_kept_dim(value, "aten::mean");
    if (!found || !is_none(found->node.argument("dtype"))) return std::nullopt;
    return found->statistic;
  }

  // Sets the number that the variance takes from the number of channels in its denominator.
  std::optional<Statistic> read_variance(Value value, double* correction) const {
    const auto found = with_kept_dim(value, "aten::var");
    if (!found) return std::nullopt;
    if (found->node.has_argument("unbiased")) {
      const auto is_unbiased = constant_bool(found->node.argument("unbiased"));
      if (!is_unbiased) return std::nullopt;
      *correction = *is_unbiased ? 1 : 0;
      return found->statistic;
    }
    const Value given = found->node.argument("correction");
    const auto number = is_none(given) ? 1.0 : constant_scalar(given);
    if (!number) return std::nullopt;
    *correction = *number;
    return found->statistic;
  }

  struct KeptDim {
    Node node;
    Statistic statistic;
  };

  // Reads an op over one dimension that keeps it, perhaps by unsqueeze.
  std::optional<KeptDim> with_kept_dim(Value value, const char* kind) const {
    Node node = value.node();
    std::optional<double> added;
    if (node.is("aten::unsqueeze")) {
      added = constant_number(node.input(1));
      node = node.input(0).node();
      if (!added) return std::nullopt;
    }
    if (!node.is(kind) || !node.has_argument("dim") || !node.has_argument("keepdim")) {
      return std::nullopt;
    }
    const auto dims = constant_ints(node.argument("dim"));
    const auto keeps = constant_bool(node.argument("keepdim"));
    const auto rank = rank_of(node.input(0), seen_);
    if (!dims || dims->size() != 1 || !keeps || !rank || *keeps == added.has_value()) {
      return std::nullopt;
    }
    const auto counted = [&](std::int64_t dim) { return dim < 0 ? dim + *rank : dim; };
    const std::int64_t dim = counted(dims->front());
    if (added && counted(static_cast<std::int64_t>(*added)) != dim) return std::nullopt;
    if (dim != 1 && dim != *rank - 1) return std::nullopt;
    return KeptDim{node, {node.input(0), dim}};
  }

  // Returns the other operand as a vector if it is a constant with one number per channel.
  static std::optional<at::Tensor> per_channel(Value operand, const WrittenNorm& norm,
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
      const auto& uses = norm.last.output().uses();
      if (uses.size() != 1 || !uses[0].user.is(kind)) return std::nullopt;
      const Node user = uses[0].user;
      if (user.block() != norm.last.block()) return std::nullopt;  // as in a loop
      if (user.is("aten::add") && !is_unscaled(user)) return std::nullopt;
      return per_channel(user.input(1 - uses[0].offset), norm, src);
    };
    if (const auto scale = next("aten::mul")) {
      norm.scale = *scale;
      norm.last = norm.last.output().uses()[0].user;
    }
    if (const auto shift = next("aten::add")) {
      norm.shift = *shift;
      norm.last = norm.last.output().uses()[0].user;
    }
  }

  // Returns true if the graph fixes the number of channels for all inputs.
  static bool fixes_channels(const WrittenNorm& norm, const SeenTensor& src) {
    if (norm.scale.defined() || norm.shift.defined()) return true;
    if (norm.dim == 1) return are_channels_fixed(norm.reads[0], norm.last.output(), src.sizes);
    const Node permute = norm.reads[0].node();
    if (!is_permute(permute, {0, 2, 3, 1})) return false;
    const std::vector<std::int64_t> image = {src.sizes[0], src.sizes[3], src.sizes[1],
                                             src.sizes[2]};
    return has_fixed_channels(permute.input(0), image);
  }

  const SeenTensors& seen_;
  Pattern quotient_ = quotient();
  Pattern sum_ = sum(tensor("spread"), any_number("eps"));
};

}  // namespace

bool name_written_norms(const Graph& graph, const SeenTensors& seen) {
  const WrittenNormFinder finder(seen);
  const auto find = [&](Node node) -> std::optional<WrittenNorm> {
    return node.is("aten::mul", "aten::div") ? finder.find(node) : std::nullopt;
  };
  return rewrite_each(graph, find, [&](const WrittenNorm& norm, const script::Builder& at) {
    const SeenTensor& src = seen.at(norm.reads[0]);
    const auto options = at::TensorOptions().dtype(src.scalar_type).device(src.device);
    const at::Tensor scale =
        norm.scale.defined() ? norm.scale : at::ones(src.sizes[norm.dim], options);
    return insert_channel_norm(at, norm.kind, norm.reads[0], scale, norm.shift, norm.eps, norm.dim);
  });
}

}  // namespace torchalgo
