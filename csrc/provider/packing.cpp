// SPDX-License-Identifier: BSD-3-Clause
#include "provider/packing.h"

#include <map>
#include <optional>

#include "base/error.h"
#include "base/product.h"
#include "ir/cost_table.h"
#include "provider/cuda_device.h"
#include "provider/cuda_runtime.h"
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

std::optional<at::Device> gpu_of(const Weights& weights) {
  std::optional<at::Device> gpu;
  for_each_tensor(weights, [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_cuda()) gpu = tensor.device();
  });
  return gpu;
}

// Other streams may read the packed weights in later calls, so they must be complete. To wait once
// is simpler than an event for which each call would have to wait.
Packed pack_on_gpu(const Kernel& kernel, const Weights& weights, at::Device gpu) {
  const CudaRuntime& runtime = cuda_runtime();
  const CudaRuntime::Stream stream = current_cuda_stream(gpu);
  // A capture would only record the packing, and a failed capture never runs it.
  TORCHALGO_CHECK(
      !is_capturing(runtime, stream),
      "TA5105 torchalgo: a CUDA graph is being captured, and the weights are not packed "
      "for {} yet: run the model once with the same shapes before capturing ({})",
      to_string(kernel.primitive), to_string(kernel.problem));
  Packed packed = pack(kernel, weights);
  check_cuda(runtime, runtime.synchronize(stream), "cudaStreamSynchronize");
  return packed;
}

}  // namespace

Packed pack_to_weight_pages(const Kernel& kernel, const Weights& weights) {
  const auto gpu = kernel.pack ? gpu_of(weights) : std::nullopt;
  if (gpu) return pack_on_gpu(kernel, weights, *gpu);
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
  const bool is_same = sizes[1] == 1 || product(std::span(sizes).subspan(2)) == 1;
  return is_same ? 0 : plain_weight_bytes(problem);
}

}  // namespace torchalgo
