// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/equal.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu_algo/kernels/pool.h"
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

struct Window {
  std::int64_t r, s, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
};

PoolProblem make_problem(PoolKind kind, std::int64_t n, std::int64_t c, std::int64_t h,
                         std::int64_t w, const Window& window) {
  PoolProblem problem;
  problem.kind = kind;
  problem.n = n, problem.c = c, problem.h = h, problem.w = w;
  problem.r = window.r, problem.s = window.s;
  problem.stride_h = window.stride_h, problem.stride_w = window.stride_w;
  problem.pad_h = window.pad_h, problem.pad_w = window.pad_w;
  problem.dilation_h = window.dilation_h, problem.dilation_w = window.dilation_w;
  return problem;
}

constexpr std::int64_t kChannels[] = {1, 3, 16, 17, 64, 72};

TEST(Pool, MaximumEqualsF64ForWindowsThatOverlapEdges) {
  for (const Window& window : {Window{3, 3, 2, 2, 1, 1, 1, 1}, Window{2, 2, 2, 2, 0, 0, 1, 1},
                               Window{3, 3, 1, 1, 1, 1, 1, 1}, Window{1, 5, 1, 3, 0, 2, 1, 1},
                               Window{3, 2, 2, 1, 1, 0, 1, 1}, Window{5, 5, 1, 1, 2, 2, 1, 1}}) {
    for (const bool ceil_mode : {false, true}) {
      for (const std::int64_t c : kChannels) {
        PoolProblem problem = make_problem(PoolKind::kMax, 2, c, 13, 10, window);
        problem.ceil_mode = ceil_mode;
        expect_correct("cpu.pool", problem, 4, 0);
      }
    }
  }
}

TEST(Pool, MaximumEqualsF64ForDilatedWindows) {
  for (const Window& window : {Window{3, 3, 1, 1, 0, 0, 2, 2}, Window{3, 3, 2, 2, 1, 1, 2, 3},
                               Window{2, 4, 1, 2, 1, 2, 3, 1}}) {
    for (const bool ceil_mode : {false, true}) {
      for (const std::int64_t c : {3, 17}) {
        PoolProblem problem = make_problem(PoolKind::kMax, 1, c, 14, 11, window);
        problem.ceil_mode = ceil_mode;
        expect_correct("cpu.pool", problem, 4, 0);
      }
    }
  }
}

TEST(Pool, AverageDividesAsTorchDoesAtPaddingAndAtCeilEdges) {
  for (const Window& window : {Window{3, 3, 2, 2, 1, 1, 1, 1}, Window{2, 2, 2, 2, 0, 0, 1, 1},
                               Window{3, 3, 1, 1, 1, 1, 1, 1}, Window{4, 3, 3, 2, 2, 1, 1, 1},
                               Window{5, 1, 4, 1, 1, 0, 1, 1}}) {
    for (const int mode : {0, 1, 2, 3}) {
      for (const std::int64_t c : kChannels) {
        PoolProblem problem = make_problem(PoolKind::kAverage, 2, c, 12, 9, window);
        problem.ceil_mode = mode % 2 != 0;
        problem.count_include_pad = mode / 2 != 0;
        expect_correct("cpu.pool", problem, 4, 1e-6);
      }
    }
  }
}

TEST(Pool, AdaptiveAverageMeetsUnevenWindowsAndGlobalOnes) {
  struct Sizes {
    std::int64_t h, w, p, q;
  };
  for (const Sizes& sizes : {Sizes{7, 7, 1, 1}, Sizes{1, 1, 1, 1}, Sizes{13, 10, 6, 7},
                             Sizes{5, 4, 7, 9}, Sizes{9, 17, 1, 3}, Sizes{40, 33, 1, 1}}) {
    for (const std::int64_t c : kChannels) {
      PoolProblem problem;
      problem.kind = PoolKind::kAdaptiveAverage;
      problem.n = 2, problem.c = c, problem.h = sizes.h, problem.w = sizes.w;
      problem.p = sizes.p, problem.q = sizes.q;
      expect_correct("cpu.pool", problem, 4, 1e-6);
    }
  }
}

TEST(Pool, RunsOnOnePixelAndOnRowsTooLongForTheStack) {
  const Window window = {3, 3, 2, 2, 1, 1, 1, 1};
  expect_correct("cpu.pool", make_problem(PoolKind::kMax, 1, 17, 1, 1, window), 4, 0);
  expect_correct("cpu.pool", make_problem(PoolKind::kMax, 1, 2, 3, 5000, window), 4, 0);
  expect_correct("cpu.pool", make_problem(PoolKind::kAverage, 1, 2, 3, 5000, window), 4, 1e-6);
  const Window dilated = {3, 3, 2, 2, 1, 1, 1, 2};
  expect_correct("cpu.pool", make_problem(PoolKind::kMax, 1, 2, 4, 3000, dilated), 4, 0);
}

TEST(Pool, IsRightWhenSeveralThreadsShareIt) {
  const Window window = {3, 3, 2, 2, 1, 1, 1, 1};
  expect_correct("cpu.pool", make_problem(PoolKind::kMax, 1, 33, 112, 112, window), 4, 0);
  PoolProblem global;
  global.kind = PoolKind::kAdaptiveAverage;
  global.c = 1030, global.h = global.w = 14;
  expect_correct("cpu.pool", global, 4, 1e-6);
}

TEST(Pool, MaximumOfAWindowWithANanIsANan) {
  const PoolProblem problem = make_problem(PoolKind::kMax, 1, 17, 9, 9, {3, 3, 2, 2, 1, 1, 1, 1});
  Sample sample = make_sample(problem, 0);
  sample.src[0] = sample.src[0].to(at::kBFloat16).to(at::kFloat);  // so that nhwc.bf16 is exact
  sample.src[0].select(2, 4).select(2, 3).fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor expected = at::max_pool2d(sample.src[0], {3, 3}, {2, 2}, {1, 1});
  for (const std::string& isa : isas()) {
    const Algorithm row = cpu_algorithm("cpu.pool", isa);
    for (const Primitive& primitive : row.offer(problem, device_with_bf16()).primitives) {
      const at::Tensor result = run_once(row, problem, primitive, sample);
      EXPECT_TRUE(at::equal(result.nan_to_num(-7), expected.nan_to_num(-7)))
          << to_string(primitive) << " " << isa;
      EXPECT_TRUE(expected.isnan().any().item<bool>());
    }
  }
}

// Each number of bf16, with each sign of NaN, beside some others: a tensor of torch would have one
// NaN only.
TEST(Pool, MaximumOfBf16IsThatOfFloats) {
  constexpr std::int64_t kAll = 65536;
  const auto value = [](std::uint16_t bits) {
    return static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
  };
  for (const std::string& isa : isas()) {
    for (const std::uint16_t other : {0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0xffc0}) {
      std::vector<std::uint16_t> src(kAll), dst(kAll);
      for (std::int64_t i = 0; i < kAll; ++i) src[i] = static_cast<std::uint16_t>(i);
      for (const std::int64_t lanes : {64, 16}) {  // with fewer lanes maxima are computed as floats
        kernels::Pool pool = {};
        pool.lanes = pool.lane_chunk = lanes;
        pool.w = {2, 1, 2};
        pool.is_max = true;
        for (std::int64_t at = 0; at < kAll; at += lanes) {
          std::vector<std::uint16_t> pixels(src.begin() + at, src.begin() + at + lanes);
          pixels.resize(2 * lanes, other);
          pool.src = reinterpret_cast<const float*>(pixels.data());
          pool.dst = reinterpret_cast<float*>(dst.data() + at);
          TORCHALGO_PICK_KERNEL(isa, run_pool_bf16)(pool, 0, 1);
        }
        for (std::int64_t i = 0; i < kAll; ++i) {
          const float a = value(src[i]), b = value(other), found = value(dst[i]);
          if (std::isnan(a) || std::isnan(b)) {
            ASSERT_TRUE(std::isnan(found)) << isa << " " << i << " " << other;
          } else {
            ASSERT_EQ(found, std::max(a, b)) << isa << " " << i << " " << other;
          }
        }
      }
    }
  }
}

TEST(Pool, RefusesOtherTypesAndProblems) {
  PoolProblem problem = make_problem(PoolKind::kMax, 1, 16, 8, 8, {2, 2, 2, 2, 0, 0, 1, 1});
  problem.dtype = DType::kF16;
  EXPECT_EQ(cpu_algorithm("cpu.pool").offer(problem, cpu_device()).refusal, "needs f32, got f16");
  EXPECT_EQ(cpu_algorithm("cpu.pool").offer(ConcatProblem(), cpu_device()).refusal,
            "needs a pooling");
}

}  // namespace
}  // namespace torchalgo
