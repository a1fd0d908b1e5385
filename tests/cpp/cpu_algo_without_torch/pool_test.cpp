// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo_without_torch/plain.h"

namespace torchalgo::cpu {
namespace {

// The maximum of each window of one image in nchw, by plain loops.
std::vector<float> plain_max(const PoolProblem& pool, const std::vector<float>& src) {
  const std::vector<std::int64_t> sizes = result_sizes(pool);
  std::vector<float> dst;
  for (std::int64_t c = 0; c < pool.c; ++c) {
    for (std::int64_t y = 0; y < sizes[2]; ++y) {
      for (std::int64_t x = 0; x < sizes[3]; ++x) {
        float most = -std::numeric_limits<float>::infinity();
        for (std::int64_t r = 0; r < pool.r; ++r) {
          for (std::int64_t s = 0; s < pool.s; ++s) {
            const std::int64_t row = y * pool.stride_h + r - pool.pad_h;
            const std::int64_t column = x * pool.stride_w + s - pool.pad_w;
            if (row < 0 || row >= pool.h || column < 0 || column >= pool.w) continue;
            most = std::max(most, src[(c * pool.h + row) * pool.w + column]);
          }
        }
        dst.push_back(most);
      }
    }
  }
  return dst;
}

TEST(WithoutTorchPool, AgreesWithPlainLoopsInEveryLayoutAndBuild) {
  const char* const text = "maxpool_f32_n1c20h9w11_r3s3_st2x2_pad1x1_dil1x1";
  const auto pool = std::get<PoolProblem>(parse_problem(text));
  std::vector<float> src(static_cast<std::size_t>(pool.c * pool.h * pool.w));
  std::mt19937 engine;
  for (float& value : src) value = std::uniform_real_distribution<float>(-1, 1)(engine);
  const std::vector<float> expected = plain_max(pool, src);
  const std::vector<std::int64_t> sizes = result_sizes(pool);
  const std::int64_t pixels = sizes[2] * sizes[3];
  for (const Bound& bound : all_bound(pool)) {
    const Layout layout = bound.primitive.src;
    Floats given = in_layout(src, layout, 1, pool.c, pool.h * pool.w);
    Floats dst(element_count(layout, 1, pool.c, pixels));
    run_plain(bound.kernel, {given.data()}, {}, dst);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(expected.size()); ++i) {
      EXPECT_EQ(dst.data()[offset_of(layout, pool.c, pixels, 0, i / pixels, i % pixels)],
                expected[static_cast<std::size_t>(i)])
          << bound.what;
    }
  }
}

}  // namespace
}  // namespace torchalgo::cpu
