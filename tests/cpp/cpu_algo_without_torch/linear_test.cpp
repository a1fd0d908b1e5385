// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo_without_torch/plain.h"

namespace torchalgo::cpu {
namespace {

// A linear layer is a 1x1 convolution of images of one pixel.
TEST(WithoutTorchLinear, AgreesWithPlainLoopsInEveryBuild) {
  const PlainConv plain("fwd_f32_n3c100h1w1_k37r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu");
  const auto linear = std::get<LinearProblem>(parse_problem("linear_f32_n3c100_k37+bias+relu"));
  for (const Bound& bound : all_bound(linear)) {
    const PlainKernel& kernel = bound.kernel;
    const DType stored = stored_type(bound.primitive, DType::kF32);
    const double tolerance = stored == DType::kF32 ? 1e-5 : stored == DType::kF16 ? 0.004 : 0.03;
    LayerPointers layer = {plain.weights.data(), plain.bias.data()};
    Floats panels(kernel.packed.empty() ? 0 : kernel.packed[0].weights);
    if (!kernel.packed.empty()) {
      const PackedPointers packed = {panels.data(), nullptr};
      kernel.pack({&layer, 1}, {&packed, 1}, std_threads());
      layer.weights = panels.data();
    }
    Floats dst(linear.n * linear.k);
    run_plain(kernel, {plain.src.data()}, layer, dst);
    for (std::int64_t i = 0; i < dst.count(); ++i)
      EXPECT_NEAR(dst.data()[i], plain.dst[static_cast<std::size_t>(i)], tolerance) << bound.what;
  }
}

}  // namespace
}  // namespace torchalgo::cpu
