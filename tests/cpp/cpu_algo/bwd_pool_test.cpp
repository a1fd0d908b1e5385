// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

constexpr double kBound = 1e-6;

TEST(PoolGradient, AgreesWithF64InEveryLayout) {
  for (const char* window :
       {"maxpool_f32_n2c{}h9w8_r3s3_st2x2_pad1x1_dil1x1",
        "maxpool_f32_n1c{}h8w6_r2s2_st2x2_pad0x0_dil1x1",
        "maxpool_f32_n2c{}h9w9_r3s3_st1x1_pad1x1_dil1x1_ceil",
        "maxpool_f32_n1c{}h12w13_r2s3_st2x1_pad1x0_dil1x2",
        "avgpool_f32_n2c{}h9w8_r3s3_st2x2_pad1x1", "avgpool_f32_n2c{}h9w8_r3s3_st2x2_pad1x1_ceil",
        "avgpool_f32_n1c{}h9w8_r3s3_st2x2_pad1x1_exclpad", "avgpool_f32_n2c{}h7w7_p1q1",
        "avgpool_f32_n1c{}h9w8_p3q5"}) {
    for (const int c : {1, 5, 16, 20, 70}) {
      const std::string text = fmt::format("bwd_{}", fmt::format(fmt::runtime(window), c));
      expect_correct("cpu.bwd_pool", parse_problem(text), 3, kBound);
    }
  }
}

// The first of equal elements gets the gradient, and the last of several NaNs, as in torch.
TEST(PoolGradient, GoesToTheFirstLargestElement) {
  const Problem problem = parse_problem("bwd_maxpool_f32_n1c1h2w4_r2s2_st2x2_pad0x0_dil1x1");
  const Algorithm algorithm = cpu_algorithm("cpu.bwd_pool");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor x = at::full({1, 1, 2, 4}, 3.0F), diff = at::full({1, 1, 1, 2}, 2.0F);
  x[0][0][0][3] = x[0][0][1][2] = nan;
  const at::Tensor expected = at::full({1, 1, 2, 4}, 0.0F);
  expected[0][0][0][0] = expected[0][0][1][2] = 2.0F;
  for (const Primitive& primitive : algorithm.offer(problem, cpu_device()).primitives) {
    const Kernel kernel = algorithm.prepare(problem, primitive, cpu_device());
    const std::vector<at::Tensor> src = {to_layout(diff, primitive.src),
                                         to_layout(x, primitive.src)};
    const at::Tensor dst = empty_result(problem, primitive.dst);
    kernel.run({{}, src, {}, dst, nullptr});
    EXPECT_TRUE(from_layout(dst, primitive.dst, {1, 1, 2, 4}).equal(expected))
        << to_string(primitive);
  }
}

}  // namespace
}  // namespace torchalgo
