// SPDX-License-Identifier: BSD-3-Clause
// Compiles the kernels of csrc/cuda as C++, and runs csrc/cuda_algo with them on the CPU.
#if __has_include(<crt/host_defines.h>)  // of a CUDA toolkit
#include <ATen/ATen.h>

#include "base/error.h"
#include "cuda/launches.h"
#include "cuda_algo/list.h"
#include "ir/activations.h"
#include "profiler/check.h"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"  // unroll
#include "cuda/depthwise.cu"
#include "cuda/layer_norm.cu"
#include "cuda/pointwise.cu"
#include "cuda/pool.cu"
#include "cuda/rows.cu"

namespace torchalgo {
namespace {

using software_gpu::launches;

const CudaLibrary& software_library() {
  static const CudaLibrary kLibrary = [] {
    CudaLibrary library;
    library.transform = [](auto...) { return 1; };
    library.pool = torchalgo_cuda_pool;
    library.pointwise = torchalgo_cuda_pointwise;
    library.rows = torchalgo_cuda_rows;
    library.depthwise = torchalgo_cuda_depthwise;
    library.layer_norm = torchalgo_cuda_layer_norm;
    return library;
  }();
  return kLibrary;
}

// The algorithms on the CPU, where their tensors are in the tests.
Algorithms algorithms_on_the_cpu() {
  Algorithms all = cuda_algorithms(software_library);
  for (Algorithm& algorithm : all) algorithm.runs_on_cpu = true;
  return all;
}

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    launches.clear();
    software_gpu::most_blocks = ~0U;
    software_gpu::multiprocessors = 132;
    software_gpu::errors_cleared = 0;
  }

  // The full check of a primitive: errors beside f64, NaN, memory before and after its tensors.
  static void expect_right(const std::string& text, std::size_t primitives = 1) {
    const Algorithms all = algorithms_on_the_cpu();
    const Problem problem = parse_problem(text);
    std::vector<Primitive> offered;
    for (const Algorithm& algorithm : all) {
      for (Primitive& each : algorithm.offer(problem, {}).primitives)
        offered.push_back(std::move(each));
    }
    ASSERT_EQ(offered.size(), primitives) << text;
    for (const int multiprocessors : {132, 0}) {  // narrow and wide vectors, if it has a choice
      software_gpu::multiprocessors = multiprocessors;
      const auto results = check_primitives(all, problem, offered, 1e-5);
      for (std::size_t i = 0; i < offered.size(); ++i)
        EXPECT_EQ(results[i].failure, "") << to_string(offered[i]) << " on " << text;
    }
  }

  static void expect_right_in_each_type(const std::string& before, const std::string& after,
                                        std::size_t primitives = 1) {
    for (const char* type : {"_f32_", "_f16_", "_bf16_"})
      expect_right(before + type + after, primitives);
  }
};

TEST_F(CudaKernels, PoolInEachWindow) {
  // 24 channels are vectors in each type, 5 are none.
  for (const char* sizes : {"n2c24h9w11", "n2c5h7w6"}) {
    for (const char* window : {"_r3s3_st2x2_pad1x1_dil1x1", "_r2s2_st2x2_pad0x0_dil1x1",
                               "_r3s2_st1x2_pad1x0_dil1x1", "_r3s3_st2x2_pad0x0_dil1x1_ceil",
                               "_r3s3_st1x1_pad0x0_dil2x2", "_r5s5_st1x1_pad2x2_dil1x1"}) {
      expect_right_in_each_type("maxpool", std::string(sizes) + window);
    }
    for (const char* window :
         {"_r3s3_st2x2_pad1x1", "_r3s3_st2x2_pad1x1_ceil", "_r2s3_st1x1_pad1x1_exclpad",
          "_r2s2_st2x2_pad1x1", "_r3s3_st1x1_pad1x1_exclpad", "_r4s4_st2x2_pad1x1"})
      expect_right_in_each_type("avgpool", std::string(sizes) + window);
    for (const char* window : {"_p1q1", "_p3q2", "_p20q20"})
      expect_right_in_each_type("avgpool", std::string(sizes) + window);
  }
}

// Returns the launch of a function of the library on a GPU of so many multiprocessors.
template <typename Run>
software_gpu::Launch launch_on(int multiprocessors, const Run& run) {
  software_gpu::multiprocessors = multiprocessors;
  launches.emplace_back();  // for a call that launches nothing
  EXPECT_EQ(run(), 0);
  return launches.back();
}

TEST_F(CudaKernels, MeansDivideThePixelsAmongTheThreads) {
  const std::vector<std::uint16_t> src(40 * 41 * 136);
  std::vector<std::uint16_t> dst(136);
  const auto mean_of = [&](int rows, int columns) {
    return [&, rows, columns] {
      const cuda::Pool pool{
          .kind = cuda::Pool::kAdaptive, .type = cuda::kHalf, .h = rows, .w = columns, .c = 136};
      return torchalgo_cuda_pool(&pool, src.data(), dst.data(), nullptr);
    };
  };
  const auto large = launch_on(0, mean_of(40, 41));
  EXPECT_EQ(large.blocks, 3U);  // 17 vectors of 8 channels, 8 in a block
  EXPECT_EQ(large.threads, 1024U);
  const auto small = launch_on(132, mean_of(7, 7));
  EXPECT_EQ(small.blocks, 9U);     // 68 vectors of 2 channels, since the threads are few
  EXPECT_EQ(small.threads, 256U);  // 32 for 49 pixels
}

TEST_F(CudaKernels, FewResultsAreSpreadOverSmallBlocksAndNarrowVectors) {
  const std::vector<std::uint16_t> src(16 * 16 * 16), weights(3 * 3 * 16);
  std::vector<std::uint16_t> dst(16 * 16 * 16);
  const auto pool = [&] {
    const cuda::Pool max{.type = cuda::kHalf, .h = 16, .w = 16, .c = 16, .p = 16, .q = 16};
    return torchalgo_cuda_pool(&max, src.data(), dst.data(), nullptr);
  };
  const auto depthwise = [&] {
    const cuda::Depthwise conv{.type = cuda::kHalf,
                               .h = 16,
                               .w = 16,
                               .c = 16,
                               .p = 16,
                               .q = 16,
                               .r = 3,
                               .s = 3,
                               .pad_h = 1,
                               .pad_w = 1};
    return torchalgo_cuda_depthwise(&conv, src.data(), weights.data(), nullptr, nullptr, dst.data(),
                                    nullptr);
  };
  const auto threads_and_blocks = [](const software_gpu::Launch& launch) {
    return std::pair(launch.threads, launch.blocks);
  };
  EXPECT_EQ(threads_and_blocks(launch_on(132, pool)), std::pair(64U, 16U * 16 * 8 / 64));
  EXPECT_EQ(threads_and_blocks(launch_on(1, pool)), std::pair(64U, 16U * 16 * 2 / 64));
  EXPECT_EQ(threads_and_blocks(launch_on(0, pool)), std::pair(256U, 16U * 16 * 2 / 256));
  // A thread has four columns.
  EXPECT_EQ(threads_and_blocks(launch_on(132, depthwise)), std::pair(64U, 16U * 4 * 8 / 64));
  EXPECT_EQ(threads_and_blocks(launch_on(0, depthwise)), std::pair(256U, 1U));
}

TEST_F(CudaKernels, PointwiseWithEachActivation) {
  for (const auto& [kind, name] : kPostOps) {
    if (!is_activation(PostOp(kind))) continue;
    const std::string numbers = kind == PostOp::kClamp ? "-1x1.5" : number_count(kind) ? "0.3" : "";
    const std::string text = std::string(name) + numbers;
    expect_right_in_each_type(text, "n2c24h3w5", 2);  // nchw and nhwc
    expect_right("mul_f32_n2c5h3w4+" + text, 2);
  }
}

TEST_F(CudaKernels, PointwiseWithTwoOperands) {
  for (const char* sizes : {"n2c24h3w5", "n3c5h3w4"}) {
    for (const char* kind : {"add", "mul", "sub"}) {
      expect_right_in_each_type(kind, sizes, 2);
      expect_right_in_each_type(kind, std::string(sizes) + "+relu", 2);
    }
    for (const char* kind : {"add", "mul"})
      expect_right_in_each_type(kind, std::string(sizes) + "_channelwise");
    expect_right_in_each_type("mul", std::string(sizes) + "_channelwise+silu");
    expect_right_in_each_type("scaleshift", sizes);
    expect_right_in_each_type("scaleshift", std::string(sizes) + "+relu");
  }
}

TEST_F(CudaKernels, ConcatAndSlice) {
  for (const char* channels : {"c8x16x24", "c3x8x1", "c4x2", "c2x2", "c6"}) {
    expect_right_in_each_type("concat", std::string("n2") + channels + "h3w4", 2);
  }
  std::string many = "n2c8";
  for (int i = 1; i < 64; ++i) many += i % 3 == 0 ? "x4" : "x2";
  expect_right("concat_f16_" + many + "h2w3", 2);
  const Problem too_many = parse_problem("concat_f16_" + many + "x2h2w3");
  for (const Algorithm& algorithm : algorithms_on_the_cpu())
    EXPECT_TRUE(algorithm.offer(too_many, {}).primitives.empty()) << algorithm.name;
  for (const char* part : {"_k16from8", "_k5from3", "_k24from0", "_k4from4"})
    expect_right_in_each_type("slice", std::string("n2c24h3w5") + part, 2);
}

TEST_F(CudaKernels, DepthwiseInEachWindow) {
  for (const char* window :
       {"r3s3_st1x1_pad1x1_dil1x1", "r3s3_st2x2_pad1x1_dil1x1", "r5s5_st1x1_pad2x2_dil1x1",
        "r5s5_st2x2_pad2x2_dil1x1", "r7s7_st1x1_pad3x3_dil1x1", "r7s7_st2x2_pad3x3_dil1x1",
        "r3s3_st1x1_pad2x2_dil2x2", "r3s3_st3x3_pad0x0_dil1x1", "r1s3_st1x1_pad0x1_dil1x1",
        "r2s4_st1x2_pad1x1_dil1x1", "r3s3_st2x2_pad0x0x1x1_dil1x1"}) {
    expect_right_in_each_type("fwd", std::string("n2c24h7w9_k24") + window + "_g24+bias+add+silu");
    expect_right("fwd_f16_n1c5h7w6_k5" + std::string(window) + "_g5");
  }
}

TEST_F(CudaKernels, DepthwiseWithEachEpilogue) {
  for (const char* epilogue :
       {"+bias", "+add", "+relu", "+bias+relu6", "+clamp-1x1", "+hardswish", "+add+silu"}) {
    const std::string text = "n1c16h4w5_k16r3s3_st1x1_pad1x1_dil1x1_g16";
    expect_right_in_each_type("fwd", text + epilogue);
  }
}

TEST_F(CudaKernels, NormsOverChannels) {
  for (const char* kind : {"layernorm", "rmsnorm", "variancenorm"}) {
    for (const char* channels : {"c2", "c3", "c24", "c40", "c96", "c258", "c768"})
      expect_right_in_each_type(kind, std::string("n2") + channels + "h3w5_eps1e-06");
  }
}

// A variance as the mean of squares less the square of the mean has no correct digit here.
TEST_F(CudaKernels, NormsWhoseMeanIsFarFromZero) {
  constexpr int kChannels = 100;
  std::vector<float> src(kChannels), ones(kChannels, 1), zeros(kChannels), dst(kChannels);
  for (int i = 0; i < kChannels; ++i) src[i] = 1e4F + static_cast<float>(i % 2);
  const cuda::LayerNorm norm{.c = kChannels};
  ASSERT_EQ(
      torchalgo_cuda_layer_norm(&norm, src.data(), ones.data(), zeros.data(), dst.data(), nullptr),
      0);
  for (int i = 0; i < kChannels; ++i) EXPECT_NEAR(dst[i], i % 2 ? 1 : -1, 1e-3) << i;
}

TEST_F(CudaKernels, LaunchOnTheCallersStreamAndReturnItsError) {
  const auto stream = reinterpret_cast<void*>(0x1234);
  float value = 0;
  cuda::Pointwise relu{.activation = {.kind = 0}};
  EXPECT_EQ(torchalgo_cuda_pointwise(&relu, &value, nullptr, nullptr, &value, stream), 0);
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].stream, stream);
  software_gpu::next_status = cudaErrorLaunchOutOfResources;
  EXPECT_EQ(torchalgo_cuda_pointwise(&relu, &value, nullptr, nullptr, &value, stream),
            cudaErrorLaunchOutOfResources);
  EXPECT_EQ(software_gpu::errors_cleared, 1);
}

TEST_F(CudaKernels, LaunchNothingForNoElementsAndForWrongArguments) {
  float value = 0;
  const cuda::Pointwise none{.n = 0};
  EXPECT_EQ(torchalgo_cuda_pointwise(&none, &value, nullptr, nullptr, &value, nullptr), 0);
  const cuda::Pointwise no_second{.kind = cuda::Pointwise::kAdd};
  const cuda::Pointwise unknown{.activation = {.kind = 99}};
  const cuda::Pointwise channelwise_sub{.kind = cuda::Pointwise::kSub, .channelwise = true};
  EXPECT_EQ(torchalgo_cuda_pointwise(&channelwise_sub, &value, &value, nullptr, &value, nullptr),
            1);
  const cuda::Pool no_images{.kind = cuda::Pool::kAdaptive, .n = 0};
  EXPECT_EQ(torchalgo_cuda_pool(&no_images, &value, &value, nullptr), 0);
  for (const cuda::Pointwise& wrong : {no_second, unknown, cuda::Pointwise{.type = 3}})
    EXPECT_EQ(torchalgo_cuda_pointwise(&wrong, &value, nullptr, nullptr, &value, nullptr), 1);
  for (const cuda::Pool& wrong :
       {cuda::Pool{.kind = 4}, cuda::Pool{.type = 3}, cuda::Pool{.c = -1},
        cuda::Pool{.stride_h = 0}, cuda::Pool{.n = 1 << 20, .h = 1 << 20}})
    EXPECT_EQ(torchalgo_cuda_pool(&wrong, &value, &value, nullptr), 1);
  cuda::Rows rows{.rows = 1, .parts = 1};
  rows.part[0] = {&value, 2, 1};  // a row is longer than the distance to the next
  EXPECT_EQ(torchalgo_cuda_rows(&rows, &value, nullptr), 1);
  for (const cuda::Depthwise& wrong :
       {cuda::Depthwise{.r = 0}, cuda::Depthwise{.activation = {.kind = 7}}})
    EXPECT_EQ(torchalgo_cuda_depthwise(&wrong, &value, &value, nullptr, nullptr, &value, nullptr),
              1);
  for (const cuda::LayerNorm& wrong :
       {cuda::LayerNorm{.kind = 3}, cuda::LayerNorm{.type = 3}, cuda::LayerNorm{.c = -1}})
    EXPECT_EQ(torchalgo_cuda_layer_norm(&wrong, &value, &value, &value, &value, nullptr), 1);
  for (const cuda::LayerNorm& empty : {cuda::LayerNorm{.pixels = 0}, cuda::LayerNorm{.c = 0}})
    EXPECT_EQ(torchalgo_cuda_layer_norm(&empty, &value, &value, &value, &value, nullptr), 0);
  EXPECT_TRUE(launches.empty());
}

}  // namespace
}  // namespace torchalgo

#endif
