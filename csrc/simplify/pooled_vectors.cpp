// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/passes.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "simplify/fixed_channels.h"
#include "simplify/insert_layer.h"
#include "simplify/shape_proofs.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using script::Graph;
using script::Node;
using script::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

bool is_constant(Value value, std::int64_t expected) { return constant_int(value) == expected; }

// Returns true for a convolution that makes [n, k, 1, 1] of [n, c, 1, 1] with constant weights.
bool is_pointwise_conv(Node node) {
  if (!node.is("aten::conv2d", "aten::_convolution")) return false;
  const std::optional<at::Tensor> weight = constant_tensor(node.input(1));
  if (!weight || weight->dim() != 4 || weight->size(2) != 1 || weight->size(3) != 1) return false;
  const bool is_transposed = node.is("aten::_convolution") && constant_bool(node.input(6)) != false;
  const auto padding = constant_ints(node.input(4));
  return !is_transposed && padding &&
         std::all_of(padding->begin(), padding->end(), [](auto size) { return size == 0; });
}

// Returns true for a sum or a product of two tensors.
bool joins_two(Node node) {
  return node.is("aten::add", "aten::mul") && is_tensor(node.input(0)) && is_tensor(node.input(1));
}

// Where each channel of an image became one number.
struct Pooled {
  Value image = nullptr;   // [n, c, h, w]
  Value vector = nullptr;  // [n, c, 1, 1]; null if the graph has no such tensor
  Node reader = nullptr;   // the node that reads the image, if `vector` is null
};

class Keeper {
 public:
  Keeper(const Graph& graph, const SeenTensors& seen)
      : graph_(graph), writes_(graph), seen_(seen) {}

  bool run() {
    bool is_changed = false;
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) is_changed |= remove_expansion(node);
    for (const Node node : nodes) is_changed |= keep_vector(node) || remove_view(node);
    return is_changed;
  }

  bool flatten_means() {
    bool is_changed = false;
    const std::vector<Node> nodes = graph_.nodes();
    for (const Node node : nodes) is_changed |= flatten_mean(node);
    return is_changed;
  }

 private:
  [[nodiscard]] Sizes sizes(Value value) const {
    const auto it = seen_.find(value);
    return it != seen_.end() && it->second.is_always_so ? it->second.sizes : Sizes{};
  }

  [[nodiscard]] std::optional<at::ScalarType> type_of(Value value) const {
    if (const auto constant = constant_tensor(value)) return constant->scalar_type();
    const auto it = seen_.find(value);
    return it != seen_.end() ? std::optional(it->second.scalar_type) : std::nullopt;
  }

  // A product with y.expand_as(x) is a product with y if the other factor is x.
  bool remove_expansion(Node node) {
    if (!node.is("aten::expand_as")) return false;
    const Value whole = node.input(1);
    const auto small = type_of(node.input(0)), large = type_of(whole);
    if (!small || small != large) return false;  // the larger rank decides on the result's type
    const auto& uses = node.output().uses();
    const bool is_factor = std::all_of(uses.begin(), uses.end(), [&](const script::Use& use) {
      return use.user.is("aten::mul") && use.offset < 2 && use.user.input(1 - use.offset) == whole;
    });
    if (uses.empty() || !is_factor) return false;
    node.output().replace_uses(node.input(0));
    return true;
  }

  // Handles a node that makes [n, k, 1, 1] of a matrix [n, k].
  bool keep_vector(Node last) {
    if (last.output_count() != 1) return false;
    const Sizes result = sizes(last.output());
    if (result.size() != 4 || result[2] != 1 || result[3] != 1) return false;
    const Value matrix = matrix_of(last);
    if (matrix == nullptr || sizes(matrix) != Sizes{result[0], result[1]}) return false;
    const std::optional<Pooled> source = source_of(matrix);
    if (!source || !makes_vector(last, *source)) return false;
    last.output().replace_uses(vector_of(matrix));
    return true;
  }

  // Replaces a mean [n, c] of images by a pooling to [n, c, 1, 1] and a flatten.
  bool flatten_mean(Node node) {
    if (!node.is("aten::mean") || node.output().uses().empty() || !read_mean(node)) return false;
    const Value matrix = node.output(), vector = vector_of(matrix);
    const script::Builder at(node);
    matrix.replace_uses(at.op("aten::flatten", {vector, at.constant(1), at.constant(-1)}));
    return true;
  }

  // Handles a view of [n, k, 1, 1] that has the same shape for all input sizes.
  bool remove_view(Node node) {
    if (!is_view(node) || sizes(node.output()).size() != 4) return false;
    Value vector = node.input(0);
    if (sizes(vector) != sizes(node.output())) return false;
    while (is_elementwise(vector.node()) || is_pointwise_conv(vector.node()))
      vector = vector.node().input(0);
    if (vector.node().inputs().empty() || !is_global_pool(vector.node())) return false;
    if (!makes_vector(node, {vector.node().input(0), vector.node().output(0)})) return false;
    node.output().replace_uses(node.input(0));
    return true;
  }

  // Returns the pooling from which the matrix [n, k] comes through linear layers, activations, sums
  // and products, whose results nobody else reads. Returns nullopt if there is none.
  [[nodiscard]] std::optional<Pooled> source_of(Value matrix) const {
    if (!has_one_reader(matrix) || sizes(matrix).size() != 2) return std::nullopt;
    if (auto pooled = pooled_in(matrix)) return pooled;
    Node node = matrix.node();
    if (is_elementwise(node) || is_constant_linear(node)) return source_of(node.input(0));
    if (!joins_two(node) || sizes(node.input(0)) != sizes(node.input(1))) return std::nullopt;
    return source_of(node.input(1)) ? source_of(node.input(0)) : std::nullopt;
  }

  // Returns the matrix that `last` may bring to rank 4, or null.
  static Value matrix_of(Node last) {
    if (is_view(last)) return last.input(0);
    if (!last.is("aten::unsqueeze")) return nullptr;
    const Node before = last.input(0).node();
    if (!before.is("aten::unsqueeze") || !has_one_reader(before.output())) return nullptr;
    const auto outer = constant_int(last.input(1)), inner = constant_int(before.input(1));
    const bool adds_image =
        (inner == 2 || inner == -1) && (outer == 2 || outer == 3 || outer == -1 || outer == -2);
    if (!adds_image) return nullptr;
    Value matrix = before.input(0);
    while (is_whole_slice(matrix.node()) && has_one_reader(matrix)) matrix = matrix.node().input(0);
    return matrix;
  }

  // Returns true if `last` makes [n, k, 1, 1] for all input sizes. The product of n and k is given,
  // so one of them decides the other.
  [[nodiscard]] bool makes_vector(Node last, const Pooled& source) const {
    if (!is_view(last)) return true;
    const std::vector<Value> to = sizes_of_view(last);
    if (to.size() != 4 || !is_constant(to[2], 1) || !is_constant(to[3], 1)) return false;
    const std::int64_t channels = sizes(last.output())[1];
    return is_size(to[0], source, 0) || is_constant(to[1], channels) ||
           (sizes(source.image)[1] == channels && is_size(to[1], source, 1));
  }

  static bool is_size(Value number, const Pooled& pooled, std::int64_t dim) {
    return dimension_of(number, pooled.image) == dim ||
           (pooled.vector != nullptr && dimension_of(number, pooled.vector) == dim);
  }

  // Returns the pooling that `matrix` holds for all input sizes, or nullopt.
  [[nodiscard]] std::optional<Pooled> pooled_in(Value matrix) const {
    const Node node = matrix.node();
    if (node.is("aten::mean")) return read_mean(node);
    if (node.inputs().empty() || !is_global_pool(node.input(0).node())) return std::nullopt;
    const Pooled pooled = {node.input(0).node().input(0), node.input(0)};
    if (flattens_from(node, 1)) return pooled;
    if (!is_view(node)) return std::nullopt;
    const std::vector<Value> to = sizes_of_view(node);
    if (to.size() != 2) return std::nullopt;
    const bool keeps_rows = is_size(to[0], pooled, 0) || is_size(to[1], pooled, 1) ||
                            is_constant(to[1], sizes(pooled.image)[1]);
    return keeps_rows ? std::optional(pooled) : std::nullopt;
  }

  // Returns true if the node makes [n, c, 1, 1] of an image for all input sizes.
  [[nodiscard]] bool is_global_pool(Node node) const {
    const auto is_all = [](Value list, std::int64_t expected) {
      const auto numbers = constant_ints(list);
      return numbers && std::all_of(numbers->begin(), numbers->end(),
                                    [&](std::int64_t number) { return number == expected; });
    };
    if (node.is("aten::adaptive_avg_pool2d"))
      return sizes(node.input(0)).size() == 4 && is_all(node.input(1), 1);
    if (node.is("aten::avg_pool2d", "aten::max_pool2d")) {
      return sizes(node.input(0)).size() == 4 && is_image_size_of(node.input(1), node.input(0)) &&
             is_all(node.input(3), 0) && (node.is("aten::avg_pool2d") || is_all(node.input(4), 1));
    }
    return is_image_mean(node, /*keeps_rank=*/true);
  }

  // Returns true for a mean of images over the height and the width.
  [[nodiscard]] bool is_image_mean(Node node, bool keeps_rank) const {
    return is_mean_over(node, {2, 3}, 4, keeps_rank) && sizes(node.input(0)).size() == 4;
  }

  // Reads a mean of images [n, c, h, w] that gives [n, c]: over both dimensions, over one after the
  // other, or over all pixels after they were joined in one dimension.
  [[nodiscard]] std::optional<Pooled> read_mean(Node node) const {
    if (is_image_mean(node, /*keeps_rank=*/false)) return Pooled{node.input(0), nullptr, node};
    const Node before = node.input(0).node();
    if (!has_one_reader(node.input(0))) return std::nullopt;
    const bool is_of_tokens = swaps_dims(before, 1, 2, 3) && has_one_reader(before.input(0)) &&
                              is_mean_over(node, {1}, 3);
    if (!is_of_tokens && !is_mean_over(node, {2}, 3)) return std::nullopt;
    const Node reader = is_of_tokens ? before.input(0).node() : before;
    if (reader.inputs().empty() || sizes(reader.input(0)).size() != 4) return std::nullopt;
    const Pooled pooled = {reader.input(0), nullptr, reader};
    const bool is_in_turn = !is_of_tokens && is_mean_over(reader, {3}, 4);
    return is_in_turn || joins_pixels(pooled) ? std::optional(pooled) : std::nullopt;
  }

  // Returns true if the node flattens dimensions `first` to 3 of a tensor of rank 4.
  static bool flattens_from(Node node, std::int64_t first) {
    return node.is("aten::flatten") && is_constant(node.input(1), first) &&
           (is_constant(node.input(2), -1) || is_constant(node.input(2), 3));
  }

  // Returns true if the reader of an image [n, c, h, w] makes [n, c, h * w] of it.
  [[nodiscard]] bool joins_pixels(const Pooled& pooled) const {
    if (writes_.has(pooled.image)) return false;  // the result may be a view of it
    const Node node = pooled.reader;
    if (flattens_from(node, 2)) return true;
    const std::vector<Value> to = is_view(node) ? sizes_of_view(node) : std::vector<Value>{};
    const Sizes image = sizes(pooled.image);
    const bool is_fixed = are_channels_fixed(pooled.image, pooled.image, image);
    return to.size() == 3 && is_size(to[0], pooled, 0) && is_constant(to[2], -1) &&
           (is_size(to[1], pooled, 1) || (is_fixed && is_constant(to[1], image[1])));
  }

  // Returns true for a mean over these dimensions of `rank`, in the type of the tensor.
  static bool is_mean_over(Node node, const Sizes& dims, std::int64_t rank,
                           bool keeps_rank = false) {
    if (!node.is("aten::mean") || node.input_count() != 4 || !is_none(node.input(3))) return false;
    auto found = constant_ints(node.input(1));
    if (!found || constant_bool(node.input(2)) != keeps_rank) return false;
    for (std::int64_t& dim : *found) dim = dim < 0 ? dim + rank : dim;
    std::ranges::sort(*found);
    return *found == dims;
  }

  // Returns the matrix as [n, k, 1, 1]. Each new node stands where the node stood that it replaces,
  // so that it reads the same values even where a tensor is changed in place later on.
  Value vector_of(Value matrix) {
    const Node node = matrix.node();
    if (const auto pooled = pooled_in(matrix)) {
      if (pooled->vector != nullptr) return pooled->vector;
      return pool(*pooled, node);
    }
    std::vector<Value> inputs = node.inputs();
    inputs[0] = vector_of(inputs[0]);
    if (joins_two(node)) inputs[1] = vector_of(inputs[1]);
    const script::Builder at(node);
    if (node.is("aten::linear")) {
      const Value filters = at.weight(filters_of(node), node.input(1));
      return insert_convolution(at, node, inputs[0], filters);
    }
    return at.op(node.kind(), {inputs.begin(), inputs.end()});
  }

  // Inserts the pooling where the image was read.
  static Value pool(const Pooled& pooled, Node mean) {
    const script::Builder at(pooled.reader);
    const Value keeps_rank = at.constant(true), no_dtype = at.constant({});
    return at.op(mean.kind(), {pooled.image, Sizes{2, 3}, keeps_rank, no_dtype});
  }

  const Graph& graph_;
  script::Writes writes_;  // of the graph before the first change, which adds no writer
  const SeenTensors& seen_;
};

}  // namespace

bool keep_pooled_vectors(const Graph& graph, const SeenTensors& seen) {
  if (!Keeper(graph, seen).run()) return false;
  graph.remove_dead_code();
  return true;
}

bool flatten_means(const Graph& graph, const SeenTensors& seen) {
  if (!Keeper(graph, seen).flatten_means()) return false;
  graph.remove_dead_code();
  return true;
}

}  // namespace torchalgo
