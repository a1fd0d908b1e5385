// SPDX-License-Identifier: BSD-3-Clause
// A run of one of our kernels allocates nothing. A counting operator new of this program shows it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "cpu_algo/problems.h"
#include "cpu_algo/row_check.h"
#include "ir/algorithm.h"
#include "profiler/check.h"

namespace {
std::atomic<std::int64_t> allocations = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (void* const memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}
}  // namespace

// The other forms of new and delete call these.
void* operator new(std::size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }

namespace torchalgo {
namespace {

// Returns how often a run of a primitive allocates.
std::int64_t allocations_of(const Algorithm& algorithm, const Problem& problem,
                            const Primitive& primitive) {
  const Sample sample = make_sample(problem, 0);
  const Kernel kernel = algorithm.prepare(problem, primitive, cpu_device());
  std::vector<at::Tensor> src;
  for (std::size_t i = 0; i < sample.src.size(); ++i)
    src.push_back(to_layout(sample.src[i], input_layout(problem, primitive, i)));
  const Layout layout = result_layout(problem, primitive);
  const at::Tensor dst = empty_result(problem, layout);
  const at::Tensor workspace = empty_bytes(kernel.primitive.workspace_bytes, at::kCPU);
  void* const scratch = workspace.defined() ? workspace.data_ptr() : nullptr;
  const Packed packed = pack(kernel, sample.weights);
  const at::Tensor residual =
      sample.residual.defined() ? to_layout(sample.residual, layout) : at::Tensor();
  const KernelArgs args = {packed, src, residual, dst, scratch};
  kernel.run(args);  // the first run may set up what later ones use
  const std::int64_t before = allocations;
  kernel.run(args);
  return allocations - before;
}

TEST(Allocations, AreNoneInARunOfEachKernel) {
  const Threads one(1);
  std::int64_t runs = 0;
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    for (const Algorithm& algorithm : prepared_algorithms()) {
      for (const Primitive& primitive : algorithm.offer(problem, device_with_bf16()).primitives) {
        EXPECT_EQ(allocations_of(algorithm, problem, primitive), 0)
            << to_string(primitive) << " " << text;
        ++runs;
      }
    }
  }
  EXPECT_GT(runs, 100);
}

}  // namespace
}  // namespace torchalgo
