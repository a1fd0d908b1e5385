// SPDX-License-Identifier: BSD-3-Clause
#include "import/shape_query.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "torchscript/constants.h"

namespace torchalgo {

using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

constexpr std::array<std::string_view, 7> kQueries = {"aten::size",  "prim::shape", "aten::len",
                                                      "aten::numel", "aten::dim",   "prim::dtype",
                                                      "prim::device"};

class Answer {
 public:
  Answer(Node* query, Value* blocked, std::int64_t channels)
      : query_(query), blocked_(blocked), channels_(channels), graph_(*query->owningGraph()) {}

  Value* insert() {
    const torch::jit::WithInsertPoint at(query_);
    if (is_kind(query_, "prim::dtype") || is_kind(query_, "prim::device"))
      return call(query_->kind(), {blocked_}, query_->output()->type());
    if (is_kind(query_, "aten::dim")) return graph_.insertConstant(kRank);
    if (is_kind(query_, "aten::len")) return size(0);
    if (is_kind(query_, "aten::numel")) return count();
    if (query_->inputs().size() == 1) return all_sizes();
    const auto dim = constant_number(query_->input(1));
    if (dim) return size(static_cast<std::int64_t>(*dim < 0 ? *dim + kRank : *dim));
    return call(c10::Symbol::fromQualString("aten::__getitem__"), {all_sizes(), query_->input(1)},
                c10::IntType::get());
  }

 private:
  static constexpr std::int64_t kRank = 4;

  Value* call(c10::Symbol kind, const std::vector<Value*>& inputs, const c10::TypePtr& type) {
    Node* const made = graph_.insertNode(graph_.create(kind, inputs));
    made->copyMetadata(query_);
    return made->output()->setType(type);
  }

  // Returns the logical size in a dimension. Blocks change the place of the channels only.
  Value* size(std::int64_t dim) {
    TORCHALGO_ASSERT(dim >= 0 && dim < kRank);
    if (dim == 1) return graph_.insertConstant(channels_);
    return call(c10::Symbol::fromQualString("aten::size"), {blocked_, graph_.insertConstant(dim)},
                c10::IntType::get());
  }

  Value* all_sizes() {
    std::vector<Value*> sizes;
    for (std::int64_t dim = 0; dim < kRank; ++dim) sizes.push_back(size(dim));
    return graph_.insertNode(graph_.createList(c10::IntType::get(), sizes))->output();
  }

  Value* count() {
    Value* product = size(0);
    for (std::int64_t dim = 1; dim < kRank; ++dim) {
      product =
          call(c10::Symbol::fromQualString("aten::mul"), {product, size(dim)}, c10::IntType::get());
    }
    return product;
  }

  Node* query_;
  Value* blocked_;
  std::int64_t channels_;
  Graph& graph_;
};

}  // namespace

bool is_shape_query(const Node* node) {
  return node->inputs().size() > 0 && is_tensor(node->input(0)) &&
         std::any_of(kQueries.begin(), kQueries.end(),
                     [&](std::string_view kind) { return is_kind(node, kind); });
}

Value* answer_shape_query(Node* query, Value* blocked, std::int64_t channels) {
  return Answer(query, blocked, channels).insert();
}

}  // namespace torchalgo
