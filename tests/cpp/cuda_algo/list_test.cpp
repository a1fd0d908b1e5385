// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "cuda/interface.h"
#include "cuda_algo/list.h"
#include "profiler/check.h"

namespace torchalgo {
namespace {

int element_bytes(int type) { return type == cuda::kFloat ? 4 : 2; }

// What the kernel does, one element after the other.
int transpose_on_cpu(const void* src, void* dst, int src_type, int dst_type, std::int64_t images,
                     std::int64_t rows, std::int64_t cols, void*) {
  EXPECT_EQ(src_type, dst_type);
  const auto bytes = static_cast<std::size_t>(element_bytes(src_type));
  const auto* const from = static_cast<const char*>(src);
  auto* const to = static_cast<char*>(dst);
  for (std::int64_t i = 0; i < images * rows * cols; ++i) {
    const std::int64_t image = i / (rows * cols), row = i / cols % rows, col = i % cols;
    const std::int64_t at = image * rows * cols + col * rows + row;
    std::memcpy(to + static_cast<std::size_t>(at) * bytes,
                from + static_cast<std::size_t>(i) * bytes, bytes);
  }
  return 0;
}

CudaLibrary fake_library() {
  CudaLibrary library;
  library.transform = transpose_on_cpu;
  return library;
}

Algorithm row_with(const CudaLibrary& library, std::string_view name = "layout.cuda_tiled") {
  return *find_algorithm(cuda_algorithms([&library]() -> const CudaLibrary& { return library; }),
                         name);
}

Device any_gpu() { return {.kind = DeviceKind::kCuda, .name = "any", .isa = "sm_90"}; }

TEST(CudaTiled, GivesTheLibraryTheSizesThatBringEveryElementToItsPlace) {
  const CudaLibrary library = fake_library();
  const Algorithm row = row_with(library);
  for (const char* text :
       {"transform_f32_n2c5h3w4_nchw_nhwc", "transform_f32_n2c5h3w4_nhwc_nchw",
        "transform_f16_n3c8h7w1_nchw_nhwc", "transform_bf16_n1c19h2w6_nhwc_nchw",
        "transform_tf32_n2c5h3w4_nchw_nhwc", "transform_f16_n2c5d2h3w4_nhwc_nchw"}) {
    const Problem problem = parse_problem(text);
    const Offer offer = row.offer(problem, any_gpu());
    ASSERT_EQ(offer.refusal, "") << text;
    const Sample sample = make_sample(problem, 3);
    const Primitive& primitive = offer.primitives.at(0);
    const at::Tensor result = run_once(row, problem, primitive, sample);
    EXPECT_TRUE(at::equal(result, sample.src[0])) << text;
  }
}

TEST(CudaTiled, RunsOnGpusOnly) {
  const Algorithm row = *find_algorithm(cuda_algorithms(), "layout.cuda_tiled");
  EXPECT_FALSE(runs_on(row, DeviceKind::kCpu));
  EXPECT_TRUE(runs_on(row, DeviceKind::kCuda));
}

TEST(CudaTiled, RefusesWithAReason) {
  const CudaLibrary library = fake_library();
  const Algorithm row = row_with(library);
  const auto refusal = [&](const char* text) {
    return row.offer(parse_problem(text), any_gpu()).refusal;
  };
  EXPECT_EQ(refusal("transform_f64_n2c5h3w4_nchw_nhwc"), "needs f32, f16 or bf16, got f64");
  for (const char* layouts : {"nchw_nChw16c", "nChw16c_nchw", "nchw_nhwc.bf16", "nhwc.bf16_nchw"})
    EXPECT_EQ(refusal((std::string("transform_f32_n2c5h3w4_") + layouts).c_str()),
              "needs nchw and nhwc");
  EXPECT_EQ(refusal("relu_f32_n2c5h3w4"), "needs a change of layout");
}

TEST(CudaAlgorithms, RefuseWithAReason) {
  const CudaLibrary library = fake_library();
  const auto refusal = [&](const char* name, const char* text) {
    return row_with(library, name).offer(parse_problem(text), any_gpu()).refusal;
  };
  EXPECT_EQ(refusal("cuda.pool", "relu_f32_n2c5h3w4"), "runs poolings only");
  EXPECT_EQ(refusal("cuda.pointwise", "add_f64_n2c5h3w4"), "needs f32, f16 or bf16, got f64");
  EXPECT_EQ(refusal("cuda.pointwise", "add_f32_n64c1024h1024w32"),
            "needs tensors of fewer than 2^31 elements");
  EXPECT_EQ(refusal("cuda.concat", "concat_f32_n1c2x4h3w4_shuffle2"), "does not shuffle channels");
  EXPECT_EQ(refusal("cuda.layer_norm", "relu_f32_n2c5h3w4"), "runs norms over channels only");
  EXPECT_EQ(refusal("cuda.slice", "concat_f32_n1c2x4h3w4"), "runs slices only");
  EXPECT_EQ(refusal("cuda.depthwise", "fwd_f32_n1c8h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g4"),
            "runs 2-D depthwise forward convolutions only");
  EXPECT_EQ(refusal("cuda.depthwise", "fwd_f32_n1c8h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g8+gelu"),
            "has no activation but ReLU, ReLU6, clamp, Hardswish and SiLU");
  EXPECT_EQ(refusal("cuda.depthwise", "fwd_f32_n1c8h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g8+relu+add"),
            "takes bias, then add, then an activation as its epilogue");
}

TEST(CudaTiled, SaysWhatItsLibraryLacks) {
  CudaLibrary absent;
  absent.absence = "needs libtorchalgo_cuda.so, which ...";
  const Problem problem = parse_problem("transform_f32_n2c5h3w4_nchw_nhwc");
  EXPECT_EQ(row_with(absent).offer(problem, any_gpu()).refusal, absent.absence);
}

TEST(CudaTiled, TellsCudasStatus) {
  CudaLibrary broken;
  broken.transform = [](auto...) { return 700; };
  const Algorithm row = row_with(broken);
  const Problem problem = parse_problem("transform_f32_n2c5h3w4_nchw_nhwc");
  const Primitive primitive = {"layout.cuda_tiled", Layout::kNchw, Layout::kNhwc};
  try {
    static_cast<void>(run_once(row, problem, primitive, make_sample(problem, 0)));
    FAIL() << "ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("status 700"), std::string::npos) << error.what();
  }
}

TEST(CudaLibrary, OfThisBuildAnswersWithoutAGpu) {
  const CudaLibrary& library = cuda_library();
  if (!library.transform) GTEST_SKIP() << library.absence;
  float value = 0;
  EXPECT_EQ(library.transform(&value, &value, cuda::kFloat, cuda::kFloat, 0, 3, 4, nullptr), 0);
  EXPECT_EQ(library.transform(&value, &value, cuda::kFloat, 3, 1, 1, 1, nullptr), 1);
  EXPECT_EQ(library.transform(&value, &value, cuda::kFloat, cuda::kFloat, -1, 1, 1, nullptr), 1);
  EXPECT_EQ(library.transform(&value, &value, cuda::kHalf, cuda::kBfloat16, 1, 1, 1, nullptr), 1);
  EXPECT_EQ(library.open_pool(0, nullptr), 0U) << "this process has no allocator for GPUs";
}

}  // namespace
}  // namespace torchalgo
