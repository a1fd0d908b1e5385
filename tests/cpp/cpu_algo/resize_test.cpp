// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/equal.h>
#include <ATen/ops/upsample_nearest2d.h>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

struct Sizes {
  std::int64_t h, w, p, q;
};
constexpr Sizes kSizes[] = {{7, 7, 14, 14}, {1, 1, 5, 3},    {5, 6, 13, 7},
                            {13, 10, 6, 5}, {8, 9, 8, 9},    {6, 4, 1, 1},
                            {3, 5, 24, 40}, {2, 30, 3, 600}, {9, 21, 9, 133}};

ResizeProblem make_problem(ResizeKind kind, const Sizes& sizes, std::int64_t n, std::int64_t c) {
  ResizeProblem problem;
  problem.kind = kind;
  problem.n = n, problem.c = c;
  problem.h = sizes.h, problem.w = sizes.w, problem.p = sizes.p, problem.q = sizes.q;
  return problem;
}

// Torch's f64 rounds the index rule otherwise (21 to 133 columns), so f32 is the oracle.
TEST(Resize, NearestTakesTheElementsThatTorchTakesInF32) {
  for (const Sizes& sizes : kSizes) {
    for (const std::int64_t c : {1, 3, 16, 17, 64}) {
      const ResizeProblem problem = make_problem(ResizeKind::kNearest, sizes, 2, c);
      const Sample sample = make_sample(problem, 1);
      const at::Tensor expected = at::upsample_nearest2d(sample.src[0], {sizes.p, sizes.q});
      for (const std::string& isa : isas()) {
        const Algorithm row = cpu_algorithm("cpu.resize", isa);
        const Offer offer = row.offer(problem, cpu_device());
        ASSERT_EQ(offer.primitives.size(), 2U);
        for (const Primitive& primitive : offer.primitives) {
          EXPECT_TRUE(at::equal(run_once(row, problem, primitive, sample), expected))
              << to_string(primitive) << " " << to_string(problem) << " " << isa;
        }
      }
    }
  }
}

TEST(Resize, NearestKeepsPadLanesZero) {
  expect_correct("cpu.resize", make_problem(ResizeKind::kNearest, {7, 7, 14, 14}, 2, 17), 2, 0);
  expect_correct("cpu.resize", make_problem(ResizeKind::kNearest, {28, 28, 56, 56}, 1, 40), 2, 0);
}

TEST(Resize, BilinearAgreesWithF64) {
  for (const Sizes& sizes : kSizes) {
    for (const std::int64_t c : {1, 3, 16, 17, 40}) {
      for (const bool align_corners : {false, true}) {
        ResizeProblem problem = make_problem(ResizeKind::kBilinear, sizes, 2, c);
        problem.align_corners = align_corners;
        expect_correct("cpu.resize", problem, 2, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace torchalgo
