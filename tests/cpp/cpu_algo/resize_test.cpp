// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/equal.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <limits>

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
      Sample sample = make_sample(problem, 1);
      sample.src[0] = sample.src[0].to(at::kBFloat16).to(at::kFloat);  // nhwc.bf16 is exact then
      const at::Tensor expected = at::upsample_nearest2d(sample.src[0], {sizes.p, sizes.q});
      for (const std::string& isa : isas()) {
        const Algorithm row = cpu_algorithm("cpu.resize", isa);
        const Offer offer = row.offer(problem, device_with_bf16());
        ASSERT_EQ(offer.primitives.size(), 3U);
        for (const Primitive& primitive : offer.primitives) {
          EXPECT_TRUE(at::equal(run_once(row, problem, primitive, sample), expected))
              << to_string(primitive) << " " << to_string(problem) << " " << isa;
        }
      }
    }
  }
}

TEST(Resize, NearestKeepsPadLanesZero) {
  expect_correct("cpu.resize", make_problem(ResizeKind::kNearest, {7, 7, 14, 14}, 2, 17), 3, 0);
  expect_correct("cpu.resize", make_problem(ResizeKind::kNearest, {28, 28, 56, 56}, 1, 40), 3, 0);
}

TEST(Resize, BilinearAgreesWithF64) {
  for (const Sizes& sizes : kSizes) {
    for (const std::int64_t c : {1, 3, 16, 17, 40}) {
      for (const bool align_corners : {false, true}) {
        ResizeProblem problem = make_problem(ResizeKind::kBilinear, sizes, 2, c);
        problem.align_corners = align_corners;
        expect_correct("cpu.resize", problem, 3, 1e-6);
      }
    }
  }
}

// A neighbour of weight 0 makes a NaN of an infinity or a NaN, so it may not be read where PyTorch
// reads none: along a side that does not change, or that has one element.
TEST(Resize, BilinearHasNansAndInfinitiesWherePyTorchHas) {
  for (const Sizes& sizes : {Sizes{3, 9, 1, 9}, Sizes{3, 9, 3, 5}, Sizes{3, 9, 3, 9},
                             Sizes{1, 9, 4, 9}, Sizes{4, 1, 9, 1}, Sizes{3, 9, 6, 18}}) {
    for (const bool align_corners : {false, true}) {
      for (const float value :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        ResizeProblem problem = make_problem(ResizeKind::kBilinear, sizes, 1, 17);
        problem.align_corners = align_corners;
        Sample sample = make_sample(problem, 1);
        sample.src[0].select(1, 3).select(1, sizes.h / 2).select(1, sizes.w / 2).fill_(value);
        const at::Tensor expected =
            at::upsample_bilinear2d(sample.src[0], {sizes.p, sizes.q}, align_corners);
        const Algorithm row = cpu_algorithm("cpu.resize");
        for (const Primitive& primitive : row.offer(problem, device_with_bf16()).primitives) {
          const at::Tensor found = run_once(row, problem, primitive, sample);
          EXPECT_TRUE(found.isnan().equal(expected.isnan()) &&
                      found.isinf().equal(expected.isinf()))
              << to_string(primitive) << " " << to_string(problem) << " " << value;
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchalgo
