// SPDX-License-Identifier: BSD-3-Clause
#include "provider/packing.h"

#include <functional>
#include <map>
#include <numeric>

#include "ir/cost_table.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

// Returns true if `packed` is a dense CPU tensor that shares no memory with the model's weights.
bool is_own_memory(const at::Tensor& packed, const Weights& weights) {
  if (!packed.defined() || !packed.is_cpu() || !packed.has_storage()) return false;
  if (!packed.is_non_overlapping_and_dense()) return false;
  bool is_own = true;
  for_each_tensor(weights, [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage() && packed.is_alias_of(tensor)) is_own = false;
  });
  return is_own;
}

}  // namespace

Packed pack_to_weight_pages(const Kernel& kernel, const Weights& weights) {
  Packed packed = pack(kernel, weights);
  for_each_tensor(packed, [&](at::Tensor& tensor) {
    if (is_own_memory(tensor, weights)) tensor = copy_to_weight_pages(tensor);
  });
  return packed;
}

std::vector<std::vector<std::int64_t>> packed_bytes(const Candidates& candidates,
                                                    const Algorithms& algorithms,
                                                    const Device& device) {
  std::map<CostKey, std::int64_t> known;
  std::vector<std::vector<std::int64_t>> bytes;
  for (const auto& list : candidates.by_anchor) {
    bytes.emplace_back();
    for (const Candidate& c : list) {
      const auto [it, is_new] = known.try_emplace(cost_key(c.problem, c.primitive));
      const Algorithm* algorithm = find_algorithm(algorithms, c.primitive.name);
      if (is_new && algorithm != nullptr) {
        it->second = packed_bytes(algorithm->prepare(c.problem, c.primitive, device));
      }
      bytes.back().push_back(it->second);
    }
  }
  return bytes;
}

std::int64_t strided_copy_bytes(const Problem& problem, Layout layout) {
  const std::vector<std::int64_t> sizes = weight_sizes(problem);
  if (layout == Layout::kNchw || sizes.size() < 4) return 0;
  const bool is_same = sizes[1] == 1 || std::accumulate(sizes.begin() + 2, sizes.end(),
                                                        std::int64_t{1}, std::multiplies<>()) == 1;
  return is_same ? 0 : plain_weight_bytes(problem);
}

}  // namespace torchalgo
