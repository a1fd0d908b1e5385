// SPDX-License-Identifier: BSD-3-Clause
#include "simplify/known_results.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "simplify/fixed_channels.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using script::Node;
using script::Value;

namespace {

using Number = std::optional<std::int64_t>;

const std::vector<std::int64_t>* sizes_of(Value tensor, const SeenTensors& seen) {
  const auto it = seen.find(tensor);
  return it != seen.end() && it->second.is_always_so ? &it->second.sizes : nullptr;
}

bool is_int(Value value) { return value.type()->kind() == c10::TypeKind::IntType; }
bool is_list(Value value) { return value.type()->kind() == c10::TypeKind::ListType; }

bool is_sum_of_lists(Node node) { return node.is("aten::add") && is_list(node.output()); }

Number length_of(Value list, const SeenTensors& seen);

// Finds out whether a tensor has one rank for all values and sizes of the inputs.
class Ranks {
 public:
  explicit Ranks(const SeenTensors& seen) : seen_(seen) {}

  bool is_fixed(Value value) {
    const auto [it, is_new] = known_.try_emplace(value, false);
    if (!is_new) return it->second;
    const bool is_fixed = is_made_with_fixed_rank(value.node());
    return known_[value] = is_fixed;
  }

 private:
  // Squeezing removes dimensions by their sizes. A branch or loop may make tensors of several
  // ranks.
  bool is_made_with_fixed_rank(Node node) {
    if (node.is("prim::Param")) return node.is_outermost();
    const std::string_view kind = node.kind();
    if (!node.blocks().empty() || kind.starts_with("aten::squeeze")) return false;
    const auto inputs = node.inputs();
    return std::all_of(inputs.begin(), inputs.end(), [&](Value input) {
      if (is_tensor(input)) return is_fixed(input);
      if (!is_list(input) || input.node().is("prim::Constant")) return true;
      const auto element = input.type()->expectRef<c10::ListType>().getElementType();
      // Numbers are sizes or dimensions: their count may be the rank of the result.
      return element->kind() == c10::TypeKind::IntType ? length_of(input, seen_).has_value()
                                                       : is_fixed(input);
    });
  }

  const SeenTensors& seen_;
  std::unordered_map<Value, bool> known_;
};

// Returns the rank of a tensor if it is the same in all runs.
Number fixed_rank(Value tensor, const SeenTensors& seen) {
  return Ranks(seen).is_fixed(tensor) ? rank_of(tensor, seen) : std::nullopt;
}

// Returns the length of a slice of a list.
Number length_of_slice(Node slice, const SeenTensors& seen) {
  const Number whole = length_of(slice.input(0), seen);
  if (!whole || constant_int(slice.input(3)) != 1) return std::nullopt;
  const auto bound = [&](Value at, std::int64_t otherwise) -> Number {
    if (is_none(at)) return otherwise;
    const Number index = constant_int(at);
    if (!index) return std::nullopt;
    return std::clamp<std::int64_t>(*index < 0 ? *index + *whole : *index, 0, *whole);
  };
  const Number begin = bound(slice.input(1), 0), end = bound(slice.input(2), *whole);
  return begin && end ? Number(std::max<std::int64_t>(*end - *begin, 0)) : std::nullopt;
}

// Returns the length of a list of sizes: size(x), a part of it such as x.shape[-2:], a copy of it,
// a list of numbers, or two such lists after each other.
Number length_of(Value list, const SeenTensors& seen) {
  const Node node = list.node();
  if (node.is("aten::size") && node.input_count() == 1) return fixed_rank(node.input(0), seen);
  if (node.is("aten::slice") && node.input_count() == 4) return length_of_slice(node, seen);
  if (!is_never_changed(list)) return std::nullopt;
  if (node.is("prim::ListConstruct")) return std::ssize(node.inputs());
  if (node.is("aten::list")) return length_of(node.input(0), seen);
  if (!is_sum_of_lists(node)) return std::nullopt;
  const Number first = length_of(node.input(0), seen), second = length_of(node.input(1), seen);
  return first && second ? Number(*first + *second) : std::nullopt;
}

// Returns item `index` >= 0 of a list that the graph makes and never changes, or null.
Value item_of(Value list, std::int64_t index, const SeenTensors& seen) {
  if (!is_never_changed(list)) return nullptr;
  const Node node = list.node();
  if (node.is("prim::ListConstruct")) {
    return index < std::ssize(node.inputs()) ? node.input(static_cast<std::size_t>(index))
                                             : nullptr;
  }
  if (node.is("aten::list")) return item_of(node.input(0), index, seen);
  const Number first = is_sum_of_lists(node) ? length_of(node.input(0), seen) : std::nullopt;
  if (!first) return nullptr;
  return index < *first ? item_of(node.input(0), index, seen)
                        : item_of(node.input(1), index - *first, seen);
}

// Returns the channels of an image if they are a fact about weights, so that the run shows them.
Number image_channels(Value image, const SeenTensors& seen) {
  const auto* const sizes = sizes_of(image, seen);
  if (sizes == nullptr || sizes->size() != 4) return std::nullopt;
  return are_channels_fixed(image, image, *sizes) ? Number((*sizes)[1]) : std::nullopt;
}

// Returns a number above 0 of which `number` is a multiple in every run.
std::int64_t divisor_of(Value number, const SeenTensors& seen) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  if (!is_int(number)) return 1;
  if (const Number constant = constant_int(number)) return std::max<std::int64_t>(*constant, 1);
  const Node node = number.node();
  if (node.is("aten::mul")) {
    const std::int64_t first = divisor_of(node.input(0), seen);
    const std::int64_t second = divisor_of(node.input(1), seen);
    return std::max(first, second) < kLargest ? first * second : first;
  }
  if (node.is("aten::floordiv")) {
    const std::int64_t whole = divisor_of(node.input(0), seen);
    const std::int64_t by = constant_int(node.input(1)).value_or(0);
    return by > 0 && whole % by == 0 ? whole / by : 1;
  }
  if (node.is("aten::__getitem__")) {
    const std::int64_t index = constant_int(node.input(1)).value_or(-1);
    const Value item = index >= 0 ? item_of(node.input(0), index, seen) : nullptr;
    return item != nullptr ? divisor_of(item, seen) : 1;
  }
  if (node.is("aten::size") && node.input_count() == 2) {
    if (constant_int(node.input(1)) != 1) return 1;
    return std::max<std::int64_t>(image_channels(node.input(0), seen).value_or(1), 1);
  }
  return 1;
}

// Returns the number of channels if `number` is that of a tensor whose channels weights fix.
Number fixed_channels(Value number, const SeenTensors& seen) {
  const Node node = number.node();
  const bool is_size = node.is("aten::size") && node.input_count() == 2;
  if (!is_size || constant_int(node.input(1)) != 1) return std::nullopt;
  const auto* const sizes = sizes_of(node.input(0), seen);
  const bool is_fixed =
      sizes != nullptr && sizes->size() > 2 && has_fixed_channels(node.input(0), *sizes);
  return is_fixed ? Number((*sizes)[1]) : std::nullopt;
}

// Returns whether a number equals a constant, if that is so in every run or in none.
std::optional<bool> are_equal(Value number, Value other, const SeenTensors& seen) {
  const Number constant = constant_int(other);
  if (!constant || !is_int(number)) return std::nullopt;
  if (const Number channels = fixed_channels(number, seen)) return channels == constant;
  return *constant % divisor_of(number, seen) != 0 ? std::optional(false) : std::nullopt;
}

}  // namespace

std::optional<c10::IValue> known_result(Node node, const SeenTensors& seen) {
  const auto as_value = [](const Number& number) {
    return number ? std::optional<c10::IValue>(*number) : std::nullopt;
  };
  if (node.is("aten::dim")) return as_value(fixed_rank(node.input(0), seen));
  if (node.is("aten::len")) return as_value(length_of(node.input(0), seen));
  const bool is_inequality = node.is("aten::ne");
  if (!is_inequality && !node.is("aten::eq")) return std::nullopt;
  const std::optional<bool> is_equal = are_equal(node.input(0), node.input(1), seen);
  return is_equal ? std::optional<c10::IValue>(*is_equal != is_inequality) : std::nullopt;
}

}  // namespace torchalgo
