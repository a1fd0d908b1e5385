// SPDX-License-Identifier: BSD-3-Clause
#include "layout_algo/list.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <limits>

#include "cpu_algo/isas.h"
#include "profiler/check.h"
#include "provider/cpu_device.h"
#include "provider/kernel.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

const Algorithm& algorithm(std::string_view name) {
  return *find_algorithm(layout_algorithms(), name);
}

TransformProblem make_problem(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w,
                              Layout from, Layout to) {
  TransformProblem problem;
  problem.n = n, problem.c = c, problem.h = h, problem.w = w;
  problem.from = from, problem.to = to;
  return problem;
}

/// The row's one primitive moves each element where to_layout would, zeroes the pad lanes and
/// leaves the guards before and after dst alone.
void expect_exact(const Algorithm& row, const Problem& problem, const std::string& isa) {
  const Offer offer = row.offer(problem, cpu_device());
  ASSERT_EQ(offer.refusal, "") << row.name << " " << to_string(problem);
  ASSERT_EQ(offer.primitives.size(), 1U);
  const Primitive& primitive = offer.primitives[0];
  const Sample sample = make_sample(problem, 3);
  const std::vector<at::Tensor> src = {to_layout(sample.src[0], primitive.src)};
  const at::Tensor shape = empty_result(problem, primitive.dst);
  constexpr std::int64_t kGuard = 64;
  const at::Tensor buffer = at::full({shape.numel() + 2 * kGuard}, 7, shape.options());
  const at::Tensor dst = buffer.as_strided(shape.sizes(), shape.strides(), kGuard);
  dst.fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor result = row.prepare(problem, primitive, cpu_device()).run({{}, src, {}, dst});
  EXPECT_TRUE(result.is_same(dst));
  const at::Tensor given =
      from_layout(src[0], primitive.src, input_sizes(problem)[0]).to(sample.src[0].scalar_type());
  EXPECT_TRUE(at::equal(result, to_layout(given, primitive.dst)))
      << row.name << " " << to_string(problem) << " " << isa << " " << at::get_num_threads();
  EXPECT_TRUE(buffer.narrow(0, 0, kGuard).eq(7).all().item<bool>() &&
              buffer.narrow(0, kGuard + shape.numel(), kGuard).eq(7).all().item<bool>())
      << row.name << " " << to_string(problem) << " " << isa << " wrote beyond its dst";
}

TEST(TiledTransform, MovesEveryElementBetweenAllPairsOfItsLayouts) {
  for (const std::string& isa : isas()) {
    const Algorithms all = layout_algorithms(isa);
    const Algorithm& row = *find_algorithm(all, "layout.tiled");
    for (const Layout from : kAllLayouts) {
      for (const Layout to : kAllLayouts) {
        if (from == to) continue;
        for (const std::int64_t c : {1, 3, 8, 9, 16, 17, 24, 40, 64}) {
          expect_exact(row, make_problem(1, c, 1, 1, from, to), isa);
          expect_exact(row, make_problem(2, c, 3, 5, from, to), isa);
          expect_exact(row, make_problem(2, c, 7, 7, from, to), isa);
          expect_exact(row, make_problem(1, c, 16, 20, from, to), isa);
        }
      }
    }
  }
}

TEST(TiledTransform, RoundsToBf16AsTorchDoesAndKeepsNans) {
  // Ties to even, the largest numbers, subnormal ones, infinities and NaNs of any payload.
  const at::Tensor bits = at::arange(0, 1 << 16, at::kInt).mul(65536);
  const at::Tensor lower = at::tensor({0, 1, 0x7fff, 0x8000, 0x8001, 0xffff}, at::kInt);
  const at::Tensor image = bits.unsqueeze(1).add(lower).view(at::kFloat).reshape({1, 48, 64, 128});
  for (const std::string& isa : isas()) {
    const Algorithms all = layout_algorithms(isa);
    const Algorithm& row = *find_algorithm(all, "layout.tiled");
    for (const Layout from : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c}) {
      const Problem problem = make_problem(1, 48, 64, 128, from, Layout::kNhwcBf16);
      const Primitive primitive = row.offer(problem, cpu_device()).primitives.at(0);
      const std::vector<at::Tensor> src = {to_layout(image, from)};
      const at::Tensor dst = empty_result(problem, Layout::kNhwcBf16);
      static_cast<void>(row.prepare(problem, primitive, cpu_device()).run({{}, src, {}, dst}));
      const at::Tensor expected = to_layout(image, Layout::kNhwcBf16);
      EXPECT_TRUE(at::equal(dst.isnan(), image.isnan())) << isa << " " << to_string(from);
      EXPECT_TRUE(at::equal(dst.nan_to_num(0, 1, -1), expected.nan_to_num(0, 1, -1)))
          << isa << " " << to_string(from);
    }
  }
}

TEST(TiledTransform, IsRightWhenSeveralThreadsShareIt) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  for (const Layout from : kAllLayouts) {
    for (const Layout to : kAllLayouts) {
      if (from == to) continue;
      expect_exact(algorithm("layout.tiled"), make_problem(2, 67, 41, 43, from, to), "");
    }
  }
  at::set_num_threads(before);
}

Algorithms cpu_rows() {
  Algorithms rows = layout_algorithms();
  std::erase_if(rows, [](const Algorithm& row) { return !row.runs_on_cpu; });
  return rows;
}

TEST(LayoutAlgorithms, ServeVolumesBetweenNchwAndNhwc) {
  for (const Algorithm& row : cpu_rows()) {
    for (const bool forward : {true, false}) {
      TransformProblem problem = make_problem(2, 19, 5, 6, forward ? Layout::kNchw : Layout::kNhwc,
                                              forward ? Layout::kNhwc : Layout::kNchw);
      problem.is_3d = true;
      problem.d = 3;
      expect_exact(row, problem, "");
      problem.to = Layout::kNChw16c;
      EXPECT_NE(row.offer(problem, cpu_device()).refusal, "") << row.name;
    }
  }
}

TEST(AtenTransform, ServesEveryTypeBetweenNchwAndNhwc) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kTf32, DType::kF16, DType::kBf16}) {
    TransformProblem problem = make_problem(2, 19, 5, 6, Layout::kNchw, Layout::kNhwc);
    problem.dtype = dtype;
    expect_exact(algorithm("layout.aten"), problem, "");
    std::swap(problem.from, problem.to);
    expect_exact(algorithm("layout.aten"), problem, "");
  }
}

TEST(LayoutAlgorithms, RefuseWithAReason) {
  const Device device = cpu_device();
  TransformProblem problem = make_problem(1, 16, 4, 4, Layout::kNchw, Layout::kNChw16c);
  EXPECT_EQ(algorithm("layout.aten").offer(problem, device).refusal, "needs nchw and nhwc");
  problem.is_3d = true;
  EXPECT_EQ(algorithm("layout.tiled").offer(problem, device).refusal,
            "needs a 2-D tensor: blocked layouts have no depth");
  problem.is_3d = false;
  problem.dtype = DType::kF16;
  EXPECT_EQ(algorithm("layout.tiled").offer(problem, device).refusal, "needs f32, got f16");
  problem.to = Layout::kNchw;
  EXPECT_EQ(algorithm("layout.tiled").offer(problem, device).refusal,
            "needs two layouts that differ");
  for (const char* name : {"layout.tiled", "layout.aten"})
    EXPECT_EQ(algorithm(name).offer(PoolProblem(), device).refusal, "needs a change of layout");
}

TEST(LayoutAlgorithms, OfferEachPairOfLayoutsByExactlyTheRowsThatHaveIt) {
  const Device device = cpu_device();
  for (const Layout from : kAllLayouts) {
    for (const Layout to : kAllLayouts) {
      if (from == to) continue;
      int offers = 0;
      for (const Algorithm& row : cpu_rows()) {
        const Offer offer = row.offer(make_problem(1, 3, 8, 8, from, to), device);
        for (const Primitive& primitive : offer.primitives) {
          EXPECT_EQ(primitive.src, from);
          EXPECT_EQ(primitive.dst, to);
          ++offers;
        }
      }
      EXPECT_EQ(offers, is_blocked(from) || is_blocked(to) ? 1 : 2);
    }
  }
}

}  // namespace
}  // namespace torchalgo
