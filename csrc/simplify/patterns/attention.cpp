// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "simplify/rewrite_each.h"
#include "simplify/shape_proofs.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

// The operands of an attention.
struct Attention : GraphPart {
  Value query = nullptr;  // [.., depth, queries] if `is_query_transposed`
  bool is_query_transposed = false;
  Value key = nullptr;  // [.., depth, keys] if `is_key_transposed`
  bool is_key_transposed = false;
  Value value = nullptr;  // [.., width, keys] if `is_value_transposed`; so is the result
  bool is_value_transposed = false;
  Value bias = nullptr;
  std::optional<double> scale = 1.0;  // nullopt: 1 / sqrt(depth)
  std::optional<double> epsilon;      // of linear attention, which has no bias and no scale
};

class AttentionFinder {
 public:
  explicit AttentionFinder(const SeenTensors& seen) : seen_(seen) {}

  [[nodiscard]] std::optional<Attention> find_attention(Node node) const {
    std::optional<Attention> found = read(node);
    if (!found || !is_sound(*found)) return std::nullopt;
    found->last = node;
    found->reads = {found->query, found->key, found->value};
    if (found->bias) found->reads.push_back(found->bias);
    return found;
  }

  // Inserts the op, and returns its result.
  [[nodiscard]] Value build(const Attention& found, const script::Builder& at) const {
    const Value query = found.is_query_transposed ? transposed(found.query, at) : found.query;
    const Value key = found.is_key_transposed ? transposed(found.key, at) : found.key;
    const Value value = found.is_value_transposed ? transposed(found.value, at) : found.value;
    const char* kind = "torchalgo::linear_attention";
    std::vector<script::Argument> arguments = {query, key, value};
    if (found.epsilon) {
      arguments.push_back(*found.epsilon);
    } else {
      kind = "torchalgo::attention";
      const Value none = at.constant({});
      arguments.push_back(found.bias ? found.bias : none);
      arguments.push_back(found.scale ? at.constant(*found.scale) : none);
    }
    arguments.push_back(at.constant(order_of(found, found.last.output())));
    arguments.push_back(std::string());  // a plan names the primitive
    const Value result = at.op(kind, arguments);
    return found.is_value_transposed ? transposed(result, at) : result;
  }

 private:
  [[nodiscard]] const SeenTensor* find(Value value) const {
    const auto it = seen_.find(value);
    return it == seen_.end() ? nullptr : &it->second;
  }
  [[nodiscard]] std::int64_t rank_of(Value value) const {
    const SeenTensor* tensor = find(value);
    return tensor == nullptr ? 0 : static_cast<std::int64_t>(tensor->sizes.size());
  }

  [[nodiscard]] std::optional<Attention> read(Node node) const {
    if (node.is("aten::matmul")) return read_product(node);
    if (node.is("aten::div")) return read_linear(node);
    return read_fused(node);
  }

  // Returns true if the node swaps the last two dimensions.
  [[nodiscard]] bool is_transpose(Node node) const {
    if (node.inputs().empty()) return false;
    const std::int64_t rank = rank_of(node.input(0));
    return swaps_dims(node, rank - 2, rank - 1, rank);
  }

  // Reads softmax(scores) times values, or values^T times softmax(scores)^T.
  [[nodiscard]] std::optional<Attention> read_product(Node node) const {
    Attention found;
    Node weights = node.input(0).node();
    found.value = node.input(1);
    if (!weights.is("aten::softmax")) {
      weights = node.input(1).node();
      if (!is_transpose(weights) || !has_one_reader(weights.output())) return std::nullopt;
      weights = weights.input(0).node();
      found.value = node.input(0);
      found.is_value_transposed = true;
    }
    if (!weights.is("aten::softmax") || !has_one_reader(weights.output())) {
      return std::nullopt;
    }
    const std::int64_t rank = rank_of(weights.input(0));
    if (dim_argument(weights, "dim", rank) != rank - 1 || !is_none(weights.input(2))) {
      return std::nullopt;
    }
    return read_scores(weights.input(0), found) ? std::optional(found) : std::nullopt;
  }

  // Reads scale * query * key^T + bias, where scale and bias may be missing.
  [[nodiscard]] bool read_scores(Value scores, Attention& found) const {
    for (int step = 0; step < 4 && has_one_reader(scores); ++step) {
      const Node node = scores.node();
      if (node.is("aten::matmul")) {
        found.query = node.input(0);
        found.key = node.input(1);
        found.is_key_transposed = true;
        // In f16, query * key^T could overflow if the factors came after it.
        const SeenTensor* const query = find(found.query);
        if (query != nullptr && query->scalar_type != at::kHalf) {
          take_scale(found.query, found.is_query_transposed, *found.scale);
          take_scale(found.key, found.is_key_transposed, *found.scale);
        }
        return true;
      }
      if (node.input_count() < 2) return false;
      if (node.is("aten::add") && constant_number(node.input(2)) == 1.0) {
        // A sum that is scaled afterwards, or a second sum, is not the form above.
        if (found.bias != nullptr || found.scale != 1.0 || !is_tensor(node.input(1))) return false;
        const bool is_first = leads_to_product(node.input(1));
        found.bias = node.input(is_first ? 0 : 1);
        scores = node.input(is_first ? 1 : 0);
        continue;
      }
      const auto factor = factor_of(node);
      if (!factor) return false;
      *found.scale *= factor->number;
      scores = factor->of;
    }
    return false;
  }

  // A tensor that a constant number multiplies.
  struct Factor {
    Value of;
    double number;
  };
  [[nodiscard]] static std::optional<Factor> factor_of(Node node) {
    const bool divides = node.is("aten::div") && node.input_count() == 2;
    if (!divides && !node.is("aten::mul")) return std::nullopt;
    const bool is_number_first = !divides && constant_scalar(node.input(0)).has_value();
    const auto number = constant_scalar(node.input(is_number_first ? 0 : 1));
    if (!number || (divides && *number == 0)) return std::nullopt;
    return Factor{node.input(is_number_first ? 1 : 0), divides ? 1 / *number : *number};
  }

  // If a constant number multiplies the operand, reads the operand without it and multiplies
  // `scale` instead. A transpose may stand behind the product.
  void take_scale(Value& operand, bool& is_transposed, double& scale) const {
    const bool is_transposed_last = is_transpose(operand.node()) && has_one_reader(operand);
    const Value scaled = is_transposed_last ? operand.node().input(0) : operand;
    const auto factor = has_one_reader(scaled) ? factor_of(scaled.node()) : std::nullopt;
    if (!factor || !keeps_range(factor->number)) return;
    const SeenTensor *const before = find(factor->of), *const after = find(scaled);
    if (before == nullptr || after == nullptr || before->scalar_type != after->scalar_type) return;
    operand = factor->of;
    is_transposed = is_transposed != is_transposed_last;
    scale *= factor->number;
  }

  // Returns true if the product of the operands overflows only where that of scaled ones would
  // nearly do so.
  [[nodiscard]] static bool keeps_range(double factor) {
    return std::abs(factor) >= 1.0 / 1024 && std::abs(factor) <= 1024;
  }

  // Returns true if the value is a product, perhaps scaled, that nothing else reads.
  [[nodiscard]] static bool leads_to_product(Value value) {
    for (int step = 0; step < 3 && has_one_reader(value); ++step) {
      const Node node = value.node();
      if (node.is("aten::matmul")) return true;
      if (!node.is("aten::mul", "aten::div")) return false;
      value = node.input(constant_scalar(node.input(0)) ? 1 : 0);
    }
    return false;
  }

  // Reads sums / (divisors + epsilon). The divisors are the last column of a product, and the sums
  // are its other columns. The product is relu(query) * (relu(key)^T * [value, column of ones]).
  [[nodiscard]] std::optional<Attention> read_linear(Node node) const {
    if (node.input_count() != 2) return std::nullopt;
    const Node sums = node.input(0).node();
    const Node sum = only_use(node.input(1), "aten::add");
    if (sum == nullptr || constant_number(sum.input(2)) != 1.0) return std::nullopt;
    const Node divisors = sum.input(0).node();
    if (!takes_columns(sums, 0, -1) || !takes_columns(divisors, -1, std::nullopt)) {
      return std::nullopt;
    }
    const Value product = sums.input(0);
    if (divisors.input(0) != product || product.uses().size() != 2) return std::nullopt;
    Attention found;
    found.epsilon = constant_scalar(sum.input(1));
    const bool is_product = found.epsilon && product.node().is("aten::matmul");
    const Node keyed = is_product ? only_use(product.node().input(1), "aten::matmul") : nullptr;
    if (keyed == nullptr) return std::nullopt;
    found.query = rectified(product.node().input(0));
    const Value keys = keyed.input(0);
    const bool is_view = is_transpose(keys.node()) && has_one_reader(keys);
    found.key = rectified(is_view ? keys.node().input(0) : keys);
    found.is_key_transposed = !is_view;
    found.value = before_ones(keyed.input(1));
    if (found.query == nullptr || found.key == nullptr || found.value == nullptr)
      return std::nullopt;
    return found;
  }

  // Returns the op that makes the value if it is of this kind, and nothing else reads the value.
  [[nodiscard]] static Node only_use(Value value, const char* kind) {
    return value.node().is(kind) && has_one_reader(value) ? value.node() : nullptr;
  }
  // Returns x if the value is relu(x), or null.
  [[nodiscard]] static Value rectified(Value value) {
    const Node relu = only_use(value, "aten::relu");
    return relu == nullptr ? nullptr : relu.input(0);
  }
  // Returns x if the value is x with a column of ones behind it, or null.
  [[nodiscard]] static Value before_ones(Value value) {
    const Node pad = only_use(value, "aten::pad");
    if (pad == nullptr || constant_ints(pad.argument("pad")) != Sizes{0, 1}) return nullptr;
    const auto mode = pad.argument("mode").constant();
    if (!mode || !mode->isString() || mode->toStringRef() != "constant") return nullptr;
    if (constant_number(pad.argument("value")) != 1.0) return nullptr;
    return pad.input(0);
  }
  // Returns true for a slice of the last dimension from `begin` to `end` that has one reader. An
  // `end` of nullopt is the end of the dimension.
  [[nodiscard]] bool takes_columns(Node node, std::int64_t begin,
                                   std::optional<std::int64_t> end) const {
    if (!node.is("aten::slice") || !has_one_reader(node.output())) return false;
    const std::int64_t rank = rank_of(node.input(0));
    if (rank == 0 || dim_argument(node, "dim", rank) != rank - 1) return false;
    const Value from = node.argument("start"), to = node.argument("end");
    const auto last = constant_number(to);
    constexpr auto kEnd = static_cast<double>(std::numeric_limits<std::int64_t>::max());
    const bool ends = end ? last == static_cast<double>(*end) : is_none(to) || last == kEnd;
    const bool begins =
        constant_number(from) == static_cast<double>(begin) || (begin == 0 && is_none(from));
    return begins && ends && constant_number(node.argument("step")) == 1.0;
  }

  // Reads scaled_dot_product_attention in f32 on the CPU: elsewhere PyTorch has kernels for it. It
  // returns 0 for a query whose mask hides all keys, so a mask has to be constant.
  [[nodiscard]] std::optional<Attention> read_fused(Node node) const {
    if (!node.is("aten::scaled_dot_product_attention")) return std::nullopt;
    const SeenTensor* const seen = find(node.argument("query"));
    if (seen == nullptr || seen->scalar_type != at::kFloat || !seen->device.is_cpu()) {
      return std::nullopt;
    }
    // The strides of its result depend on the kernel that PyTorch chooses.
    if (!is_copied_by_readers(node.output())) return std::nullopt;
    if (constant_number(node.argument("dropout_p")) != 0.0) return std::nullopt;
    if (constant_bool(node.argument("is_causal")) != false) return std::nullopt;
    if (constant_bool(node.argument("enable_gqa")) != false) return std::nullopt;
    Attention found;
    found.query = node.argument("query");
    found.key = node.argument("key");
    found.value = node.argument("value");
    const Value mask = node.argument("attn_mask");
    if (!is_none(mask)) {
      const auto constant = constant_tensor(mask);
      if (!constant || constant->scalar_type() != at::kFloat) return std::nullopt;
      if (constant->numel() == 0 || constant->amax({-1}).isneginf().any().item<bool>()) {
        return std::nullopt;
      }
      found.bias = mask;
    }
    const Value scale = node.argument("scale");
    found.scale = constant_scalar(scale);
    if (!found.scale && !is_none(scale)) return std::nullopt;
    return found;
  }

  // Returns true if the tensors have the types and sizes of an attention.
  [[nodiscard]] bool is_sound(const Attention& found) const {
    const SeenTensor* const query = find(found.query);
    const std::size_t rank = query == nullptr ? 0 : query->sizes.size();
    if (rank != 3 && rank != 4) return false;
    for (Value tensor : {found.query, found.key, found.value, found.bias}) {
      if (tensor == nullptr) continue;
      const SeenTensor* const seen = find(tensor);
      const auto constant = constant_tensor(tensor);
      if (seen == nullptr && !constant) return false;
      const at::ScalarType type = seen != nullptr ? seen->scalar_type : constant->scalar_type();
      const std::size_t own_rank =
          seen != nullptr ? seen->sizes.size() : static_cast<std::size_t>(constant->dim());
      if (own_rank > rank) return false;
      if (type != query->scalar_type || !at::isFloatingType(type)) return false;
    }
    const SeenTensor *const key = find(found.key), *const value = find(found.value);
    return key != nullptr && value != nullptr && key->sizes.size() == rank &&
           value->sizes.size() == rank && query->is_always_so && key->is_always_so &&
           value->is_always_so &&
           std::equal(query->sizes.begin(), query->sizes.end() - 2, key->sizes.begin()) &&
           std::equal(query->sizes.begin(), query->sizes.end() - 2, value->sizes.begin());
  }

  // Returns the order of the result's memory. The product that it replaces has a contiguous result.
  // If all readers bring the heads behind the tokens and copy them, the order is one in which they
  // need not copy.
  [[nodiscard]] Sizes order_of(const Attention& found, Value result) const {
    Sizes order(static_cast<std::size_t>(rank_of(found.query)));
    std::iota(order.begin(), order.end(), 0);
    const auto rank = static_cast<std::int64_t>(order.size());
    const auto swaps_last = [&](Node node) { return swaps_dims(node, rank - 2, rank - 1, rank); };
    if (found.is_value_transposed || (found.epsilon && is_copied(result, swaps_last))) {
      std::swap(order[order.size() - 1], order[order.size() - 2]);
    } else if (order.size() == 4 && is_read_by_token(result)) {
      std::swap(order[1], order[2]);
    }
    return order;
  }
  // Returns true if the op copies its input or asks for its sizes only.
  [[nodiscard]] static bool is_copy(Node node) {
    return node.is("aten::reshape", "aten::contiguous", "aten::flatten", "aten::size");
  }
  // Returns true if all readers copy the tensor, perhaps with its dimensions in another order, so
  // that its strides do not matter. `is_order` says which order counts.
  template <class IsOrder>
  [[nodiscard]] static bool is_copied(Value value, const IsOrder& is_order) {
    const auto& uses = value.uses();
    return !uses.empty() && std::all_of(uses.begin(), uses.end(), [&](const script::Use& use) {
      if (use.user.is("aten::size")) return true;
      if (!is_order(use.user)) return false;
      const auto& readers = use.user.output().uses();
      return std::all_of(readers.begin(), readers.end(),
                         [](const script::Use& reader) { return is_copy(reader.user); });
    });
  }
  [[nodiscard]] static bool is_read_by_token(Value result) {
    return is_copied(result, [](Node node) { return swaps_dims(node, 1, 2, 4); });
  }
  [[nodiscard]] static bool is_copied_by_readers(Value result) {
    const auto& uses = result.uses();
    const bool is_direct =
        !uses.empty() &&
        std::all_of(uses.begin(), uses.end(), [](const auto& use) { return is_copy(use.user); });
    return is_direct ||
           is_copied(result, [](Node node) { return node.is("aten::transpose", "aten::permute"); });
  }

  // Returns the tensor with its last two dimensions swapped: what was swapped before, or a view.
  [[nodiscard]] Value transposed(Value tensor, const script::Builder& at) const {
    if (is_transpose(tensor.node())) return tensor.node().input(0);
    const Value last = at.constant(-1), before = at.constant(-2);
    return at.op("aten::transpose", {tensor, before, last});
  }

  const SeenTensors& seen_;
};

}  // namespace

bool fuse_attention(const Graph& graph, const SeenTensors& seen) {
  const AttentionFinder finder(seen);
  return rewrite_each(
      graph, [&](Node node) { return finder.find_attention(node); },
      [&](const Attention& found, const auto& at) { return finder.build(found, at); });
}

}  // namespace torchalgo
