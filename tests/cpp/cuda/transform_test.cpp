// SPDX-License-Identifier: BSD-3-Clause
// Compiles the kernels of csrc/cuda/transform.cu as C++, and runs them on the CPU.
#if __has_include(<crt/host_defines.h>)  // of a CUDA toolkit
#include <ATen/ATen.h>

#include "cuda/launches.h"
#pragma GCC diagnostic ignored "-Wunknown-pragmas"  // unroll
#include "cuda/transform.cu"

namespace torchalgo::cuda {
namespace {

using software_gpu::Block;
using software_gpu::launches;

class Transform : public testing::Test {
 protected:
  void SetUp() override {
    launches.clear();
    software_gpu::most_blocks = 3;
    software_gpu::errors_cleared = 0;
    at::manual_seed(0);
  }

  // Returns true if the kernel's result has the bits of ATen's.
  static bool is_right(std::vector<std::int64_t> sizes, at::ScalarType from, at::ScalarType to,
                       std::int64_t misaligned = 0) {
    const at::Tensor src = shifted(at::randn(sizes), from, misaligned);
    const at::Tensor want = src.transpose(1, 2).to(to).contiguous();
    const at::Tensor dst = shifted(at::full(want.sizes(), -1.0), to, misaligned);
    const int status =
        torchalgo_cuda_transform(src.data_ptr(), dst.data_ptr(), type_of(from), type_of(to),
                                 sizes[0], sizes[1], sizes[2], stream());
    EXPECT_EQ(status, 0);
    return std::memcmp(dst.data_ptr(), want.data_ptr(), want.nbytes()) == 0;
  }

  static cudaStream_t stream() { return reinterpret_cast<cudaStream_t>(0x1234); }

  static int type_of(at::ScalarType type) {
    return type == at::kFloat ? kFloat : type == at::kHalf ? kHalf : kBfloat16;
  }

 private:
  // Returns a copy that begins `elements` after an aligned address.
  static at::Tensor shifted(const at::Tensor& values, at::ScalarType type, std::int64_t elements) {
    const at::Tensor memory = at::empty(values.numel() + elements, type);
    return memory.slice(0, elements).view(values.sizes()).copy_(values);
  }
};

TEST_F(Transform, HasTheBitsOfAtenInEveryTypeSizeAndAlignment) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {2, 3, 1024}, {1, 64, 196}, {3, 7, 9}, {1, 1024, 16}, {2, 72, 65}, {1, 1, 100}, {5, 130, 8}};
  const std::vector<std::pair<at::ScalarType, at::ScalarType>> types = {
      {at::kFloat, at::kFloat},   {at::kHalf, at::kHalf},      {at::kBFloat16, at::kBFloat16},
      {at::kFloat, at::kHalf},    {at::kFloat, at::kBFloat16}, {at::kHalf, at::kFloat},
      {at::kBFloat16, at::kFloat}};
  for (const auto& shape : shapes) {
    for (const auto& [from, to] : types) {
      for (const std::int64_t misaligned : {0, 1}) {
        EXPECT_TRUE(is_right(shape, from, to, misaligned))
            << at::IntArrayRef(shape) << " " << from << " to " << to << ", from element "
            << misaligned;
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(Transform, KeepsNanAndInfinity) {
  at::Tensor src = at::randn({1, 8, 16});
  src[0][0][0] = std::numeric_limits<float>::quiet_NaN();
  src[0][1][0] = std::numeric_limits<float>::infinity();
  const at::Tensor dst = at::empty({1, 16, 8}, at::kHalf);
  ASSERT_EQ(
      torchalgo_cuda_transform(src.data_ptr(), dst.data_ptr(), kFloat, kHalf, 1, 8, 16, stream()),
      0);
  EXPECT_TRUE(at::equal(dst.isnan(), src.transpose(1, 2).isnan()));
  EXPECT_TRUE(at::equal(dst.isinf(), src.transpose(1, 2).isinf()));
}

TEST_F(Transform, NeedsItsBarriers) {
  Block::has_barriers = false;
  EXPECT_FALSE(is_right({2, 64, 196}, at::kFloat, at::kFloat));
  Block::has_barriers = true;
  EXPECT_TRUE(is_right({2, 64, 196}, at::kFloat, at::kFloat));
}

TEST_F(Transform, LaunchesOneKernelOnTheCallersStream) {
  ASSERT_TRUE(is_right({4, 64, 3136}, at::kFloat, at::kFloat));
  ASSERT_EQ(launches.size(), 1U);
  EXPECT_EQ(launches[0].blocks, 4U * 196);  // tiles of 32 x 32, since there are few
  EXPECT_EQ(launches[0].threads, static_cast<unsigned>(kTileThreads));
  EXPECT_EQ(launches[0].shared_bytes, 32U * 33 * 4);
  EXPECT_EQ(launches[0].stream, stream());
}

TEST_F(Transform, LaunchesNothingForNoElementsAndForWrongArguments) {
  float value = 0;
  const auto call = [&](int from, int to, std::int64_t images, std::int64_t rows) {
    return torchalgo_cuda_transform(&value, &value, from, to, images, rows, 1, stream());
  };
  EXPECT_EQ(call(kFloat, kFloat, 0, 1), cudaSuccess);
  EXPECT_EQ(call(kFloat, kFloat, 1, -1), cudaErrorInvalidValue);
  EXPECT_EQ(call(kHalf, kBfloat16, 1, 1), cudaErrorInvalidValue);
  EXPECT_EQ(call(kFloat, 3, 1, 1), cudaErrorInvalidValue);
  EXPECT_TRUE(launches.empty());
}

TEST_F(Transform, ReturnsTheErrorOfTheLaunchAndClearsIt) {
  float value = 0;
  software_gpu::next_status = cudaErrorLaunchOutOfResources;
  EXPECT_EQ(torchalgo_cuda_transform(&value, &value, kFloat, kFloat, 1, 1, 1, stream()),
            cudaErrorLaunchOutOfResources);
  EXPECT_EQ(software_gpu::errors_cleared, 1);
}

}  // namespace
}  // namespace torchalgo::cuda

#endif
