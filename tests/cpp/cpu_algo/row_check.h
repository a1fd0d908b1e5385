// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu_algo/isas.h"
#include "cpu_algo/list.h"
#include "ir/algorithm.h"
#include "profiler/check.h"
#include "provider/cpu_device.h"
#include "provider/kernel.h"
#include "provider/memory.h"
#include "provider/with_tensors.h"

namespace torchalgo {

/// Returns the folder's algorithms, prepared for tensors.
inline Algorithms prepared_algorithms(const std::string& isa = cpu_device().isa) {
  Algorithms algorithms = cpu_algorithms(isa);
  prepare_with_tensors(algorithms);
  return algorithms;
}

/// Returns the algorithm `name` with the kernels that were built for `isa`.
inline Algorithm cpu_algorithm(std::string_view name, const std::string& isa = cpu_device().isa) {
  for (Algorithm& algorithm : prepared_algorithms(isa))
    if (algorithm.name == name) return std::move(algorithm);
  ADD_FAILURE() << "no algorithm " << name;
  return {};
}

/// Sets torch's number of threads for a scope.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// Runs the primitive on a dst between two guards of 64 elements, which it must leave alone.
inline void expect_writes_inside(const Algorithm& row, const Problem& problem,
                                 const Primitive& primitive) {
  constexpr std::int64_t kGuard = 64;
  const Sample sample = make_sample(problem, 0);
  std::vector<at::Tensor> src;
  for (std::size_t i = 0; i < sample.src.size(); ++i) {
    src.push_back(to_layout(sample.src[i], input_layout(problem, primitive, i)));
  }
  const Kernel kernel = row.prepare(problem, primitive, cpu_device());
  const at::Tensor shape = empty_result(problem, result_layout(problem, primitive));
  const at::Tensor buffer = at::full({shape.numel() + 2 * kGuard}, 7.0F, shape.options());
  const at::Tensor dst = buffer.as_strided(shape.sizes(), shape.strides(), kGuard);
  const at::Tensor workspace =
      at::full({kernel.primitive.workspace_bytes}, 0xff, at::TensorOptions().dtype(at::kByte));
  kernel.run({pack(kernel, sample.weights), src, {}, dst, workspace.data_ptr()});
  EXPECT_TRUE(buffer.narrow(0, 0, kGuard).eq(7).all().item<bool>() &&
              buffer.narrow(0, kGuard + shape.numel(), kGuard).eq(7).all().item<bool>())
      << to_string(primitive) << " " << to_string(problem) << " wrote beyond its dst";
}

/// The algorithm `name` offers `problem` in `layouts` layouts, and each agrees with f64 (relative
/// L2) in every build, on poisoned memory, with pad lanes zero and nothing written outside; on 1
/// thread, and on 2 if there is work for them.
inline void expect_correct(std::string_view name, const Problem& problem, std::size_t layouts,
                           double max_rel_error) {
  const std::vector<std::int64_t> sizes = result_sizes(problem);
  const std::int64_t elements = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  for (const std::string& isa : isas()) {
    const Algorithm row = cpu_algorithm(name, isa);
    const Offer offer = row.offer(problem, device_with_bf16());
    ASSERT_EQ(offer.refusal, "") << to_string(problem);
    ASSERT_EQ(offer.primitives.size(), layouts) << to_string(problem);
    for (const Primitive& primitive : offer.primitives) {
      expect_writes_inside(row, problem, primitive);
    }
    for (int count = 1; count <= (elements > 32768 ? 2 : 1); ++count) {
      const Threads threads(count);
      const auto results = check_primitives({row}, problem, offer.primitives, max_rel_error);
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].failure, "")
            << to_string(offer.primitives[i]) << " " << to_string(problem) << " in the " << isa
            << " build on " << count << " threads";
      }
    }
  }
}

}  // namespace torchalgo
