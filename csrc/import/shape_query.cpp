// SPDX-License-Identifier: BSD-3-Clause
#include "import/shape_query.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "torchscript/constants.h"

namespace torchalgo {

using script::Node;
using script::Value;

namespace {

constexpr std::array<std::string_view, 7> kQueries = {"aten::size",  "prim::shape", "aten::len",
                                                      "aten::numel", "aten::dim",   "prim::dtype",
                                                      "prim::device"};

class Answer {
 public:
  Answer(Node query, Value blocked, std::int64_t channels)
      : query_(query), blocked_(blocked), channels_(channels), at_(query) {}

  Value insert() {
    if (query_.is("prim::dtype", "prim::device"))
      return call(query_.kind(), {blocked_}, query_.output().type());
    if (query_.is("aten::dim")) return at_.constant(kRank);
    if (query_.is("aten::len")) return size(0);
    if (query_.is("aten::numel")) return count();
    if (query_.input_count() == 1) return all_sizes();
    const auto dim = constant_number(query_.input(1));
    if (dim) return size(static_cast<std::int64_t>(*dim < 0 ? *dim + kRank : *dim));
    return call("aten::__getitem__", {all_sizes(), query_.input(1)}, c10::IntType::get());
  }

 private:
  static constexpr std::int64_t kRank = 4;

  Value call(std::string_view kind, const std::vector<script::Argument>& inputs,
             const c10::TypePtr& type) {
    const Value made = at_.op(kind, inputs);
    made.set_type(type);
    return made;
  }

  // Returns the logical size in a dimension. Blocks change the place of the channels only.
  Value size(std::int64_t dim) {
    TORCHALGO_ASSERT(dim >= 0 && dim < kRank);
    if (dim == 1) return at_.constant(channels_);
    return call("aten::size", {blocked_, at_.constant(dim)}, c10::IntType::get());
  }

  Value all_sizes() {
    std::vector<Value> sizes;
    for (std::int64_t dim = 0; dim < kRank; ++dim) sizes.push_back(size(dim));
    return at_.ints(sizes);
  }

  Value count() {
    Value product = size(0);
    for (std::int64_t dim = 1; dim < kRank; ++dim) {
      product = call("aten::mul", {product, size(dim)}, c10::IntType::get());
    }
    return product;
  }

  Node query_;
  Value blocked_;
  std::int64_t channels_;
  script::Builder at_;
};

}  // namespace

bool is_shape_query(Node node) {
  return node.input_count() > 0 && is_tensor(node.input(0)) &&
         std::any_of(kQueries.begin(), kQueries.end(),
                     [&](std::string_view kind) { return node.is(kind); });
}

torch::jit::Value* answer_shape_query(Node query, Value blocked, std::int64_t channels) {
  return Answer(query, blocked, channels).insert().get();
}

}  // namespace torchalgo
