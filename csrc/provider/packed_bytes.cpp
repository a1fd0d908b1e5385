// SPDX-License-Identifier: BSD-3-Clause
#include "provider/packed_bytes.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "ir/cost_table.h"

namespace torchalgo {
namespace {

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

Weights zero_weights_of_layer(const Problem& problem) {
  const auto options = at::TensorOptions().dtype(scalar_type(dtype_of(problem)));
  const std::vector<std::int64_t> sizes = weight_sizes(problem);
  if (sizes.empty()) return {};
  const bool is_affine = std::holds_alternative<ScaleShiftProblem>(problem);
  Weights weights = {at::zeros(sizes, options), at::Tensor()};
  if (is_affine || has(epilogue_of(problem), PostOp::kBias)) {
    weights.bias = at::zeros({is_affine ? sizes[0] : result_sizes(problem).at(1)}, options);
  }
  return weights;
}

Weights zero_weights(const Problem& problem) {
  const std::vector<Problem> layers = layers_of(problem);
  Weights weights = zero_weights_of_layer(layers[0]);
  for (std::size_t i = 1; i < layers.size(); ++i)
    weights.next.push_back(zero_weights_of_layer(layers[i]));
  return weights;
}

// An opaque tensor of oneDNN has no storage; torch tells its size by an op that is no public API.
std::int64_t mkldnn_bytes(const at::Tensor& tensor) {
  const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_nbytes", ""});
  TORCHALGO_CHECK(op, "packed_bytes: this torch lacks mkldnn::_nbytes as torch 2.11 has it");
  torch::jit::Stack stack = {tensor};
  op->callBoxed(stack);
  return stack.back().toInt();
}

}  // namespace

std::int64_t packed_bytes(const Algorithm& algorithm, const Problem& problem,
                          const Primitive& primitive) {
  if (!algorithm.pack || plain_weight_bytes(problem) == 0) return 0;
  if (algorithm.packed_bytes) return algorithm.packed_bytes(problem, primitive);
  const Weights plain = zero_weights(problem);
  return held_bytes(algorithm.pack(problem, primitive, plain), plain);
}

std::vector<std::vector<std::int64_t>> packed_bytes(const Candidates& candidates,
                                                    const Algorithms& algorithms) {
  std::map<CostKey, std::int64_t> known;
  std::vector<std::vector<std::int64_t>> bytes;
  for (const auto& list : candidates.by_anchor) {
    bytes.emplace_back();
    for (const Candidate& c : list) {
      const auto [it, is_new] = known.try_emplace(cost_key(c.problem, c.primitive));
      const Algorithm* row = find_algorithm(algorithms, c.primitive.name);
      if (is_new && row != nullptr) it->second = packed_bytes(*row, c.problem, c.primitive);
      bytes.back().push_back(it->second);
    }
  }
  return bytes;
}

std::int64_t held_bytes(const Packed& packed, const Weights& plain) {
  std::set<const void*> counted;
  for (const at::Tensor& tensor : tensors_of(plain)) {
    if (tensor.defined()) counted.insert(tensor.storage().data());
  }
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : packed) {
    if (!tensor.defined()) continue;
    if (tensor.is_mkldnn()) {
      bytes += mkldnn_bytes(tensor);
    } else if (counted.insert(tensor.storage().data()).second) {
      bytes += static_cast<std::int64_t>(tensor.storage().nbytes());
    }
  }
  return bytes;
}

std::int64_t plain_weight_bytes(const Problem& problem) {
  std::int64_t count = 0;
  for (const Problem& layer : layers_of(problem)) {
    const std::vector<std::int64_t> sizes = weight_sizes(layer);
    if (!sizes.empty()) count += product(sizes);
  }
  return count * static_cast<std::int64_t>(c10::elementSize(scalar_type(dtype_of(problem))));
}

std::int64_t strided_copy_bytes(const Problem& problem, Layout layout) {
  const std::vector<std::int64_t> sizes = weight_sizes(problem);
  if (layout == Layout::kNchw || sizes.size() < 4) return 0;
  const bool is_same = sizes[1] == 1 || product({sizes.begin() + 2, sizes.end()}) == 1;
  return is_same ? 0 : plain_weight_bytes(problem);
}

}  // namespace torchalgo
