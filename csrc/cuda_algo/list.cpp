// SPDX-License-Identifier: BSD-3-Clause
#include "cuda_algo/list.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/product.h"
#include "cuda_algo/kernels.h"

namespace torchalgo {
namespace {

using cuda_algo::KernelFamily;

// Returns whether the kernels can index the problem's tensors. Those of a transform need not be
// small.
bool has_small_tensors(const Problem& problem) {
  if (std::holds_alternative<TransformProblem>(problem)) return true;
  std::vector<std::vector<std::int64_t>> tensors = input_sizes(problem);
  tensors.push_back(result_sizes(problem));
  return std::ranges::all_of(tensors, [](const std::vector<std::int64_t>& sizes) {
    return product(sizes) < cuda::kElementLimit;
  });
}

Algorithm algorithm_of(const KernelFamily& family,
                       const std::function<const CudaLibrary&()>& library) {
  Algorithm algorithm;
  algorithm.name = family.name;
  algorithm.rounding = 1;
  algorithm.runs_on_cpu = false;
  algorithm.runs_on_cuda = true;
  algorithm.offer = [=](const Problem& problem, const Device&) -> Offer {
    if (std::string refusal = family.refuse(problem); !refusal.empty()) return {{}, refusal};
    if (!has_small_tensors(problem)) return {{}, "needs tensors of fewer than 2^31 elements"};
    const DType dtype = dtype_of(problem);
    if (!cuda_algo::element_type_of(dtype))
      return {{}, fmt::format("needs f32, f16 or bf16, got {}", to_string(dtype))};
    if (!library().transform) return {{}, library().absence};
    Offer offer;
    for (const auto& [src, dst] : family.layouts(problem))
      offer.primitives.push_back({std::string(family.name), src, dst});
    return offer;
  };
  algorithm.prepare = [=](const Problem& problem, const Primitive& primitive, const Device&) {
    return family.prepare(problem, primitive, library());
  };
  return algorithm;
}

}  // namespace

Algorithms cuda_algorithms(const std::function<const CudaLibrary&()>& library) {
  Algorithms all;
  for (const KernelFamily& family :
       {cuda_algo::transform(), cuda_algo::pool(), cuda_algo::pointwise(), cuda_algo::concat(),
        cuda_algo::slice(), cuda_algo::depthwise(), cuda_algo::layer_norm()})
    all.push_back(algorithm_of(family, library));
  return all;
}

const Algorithms& cuda_algorithms() {
  static const Algorithms kAlgorithms = cuda_algorithms(cuda_library);
  return kAlgorithms;
}

}  // namespace torchalgo
