// SPDX-License-Identifier: BSD-3-Clause
#include "standalone/linear.h"

#include "standalone/plain_conv.h"

namespace torchalgo::cpu {
namespace {

// A linear layer is a 1x1 convolution of images of one pixel.
TEST(StandaloneLinear, AgreesWithPlainLoopsInEveryBuild) {
  const PlainConv plain("fwd_f32_n3c100h1w1_k37r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu");
  const auto linear = std::get<LinearProblem>(parse_problem("linear_f32_n3c100_k37+bias+relu"));
  for (const std::string& isa : isas()) {
    for (const bool has_panels : {false, true}) {
      StandaloneKernel kernel = bind_linear(linear, has_panels, isa);
      EXPECT_EQ(kernel.weight_floats > 0, has_panels);
      Floats panels(kernel.weight_floats);
      if (has_panels)
        kernel.pack({plain.weights.data(), nullptr}, panels.data(), nullptr, std_threads());
      Floats dst(linear.n * linear.k);
      kernel.run({.src = plain.src.data(),
                  .weights = has_panels ? panels.data() : plain.weights.data(),
                  .bias = plain.bias.data(),
                  .dst = dst.data()},
                 std_threads());
      for (std::int64_t i = 0; i < dst.count(); ++i)
        EXPECT_NEAR(dst.data()[i], plain.dst[static_cast<std::size_t>(i)], 1e-5) << isa;
    }
  }
}

}  // namespace
}  // namespace torchalgo::cpu
