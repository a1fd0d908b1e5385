// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/list.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "all_algorithms.h"
#include "base/error.h"
#include "cudnn_algo/fake_device.h"
#include "cudnn_algo/offers.h"
#include "profiler/check.h"

namespace torchalgo::cudnn {
namespace {

using fake::fake_device;

bool is_cudnn_mapped() { return dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD) != nullptr; }

TEST(CudnnAlgorithms, AreAmongAllAlgorithmsAndRunOnGpusOnly) {
  for (const Algorithm& row : cudnn_algorithms()) {
    EXPECT_FALSE(row.runs_on_cpu) << row.name;
    EXPECT_TRUE(row.runs_on_cuda) << row.name;
    const Algorithm* const found = find_algorithm(all_algorithms(), std::string(row.name) + ".x");
    ASSERT_NE(found, nullptr) << row.name;
    EXPECT_EQ(found->name, row.name);
  }
  EXPECT_EQ(cudnn_algorithms().size(), 13U);
}

TEST(CudnnAlgorithms, RefuseWithTheAbsenceWhereThereIsNoCudnn) {
  if (is_cudnn_mapped()) GTEST_SKIP() << "this process has cuDNN";
  const std::string absence = process_api().absence;
  EXPECT_NE(absence, "");
  for (const Algorithm& row : cudnn_algorithms()) {
    bool is_right = false;
    for (const std::string problem :
         {"fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1",
          "fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias",
          "fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu",
          "fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias+add",
          "fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
          "fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1+relu",
          "fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias+silu",
          "fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias+gelu",
          "bwd_data_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1",
          "bwd_filter_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1"}) {
      const Offer offer = row.offer(parse_problem(problem), fake_device());
      EXPECT_TRUE(offer.primitives.empty()) << row.name;
      is_right = is_right || offer.refusal == absence;
    }
    EXPECT_TRUE(is_right) << row.name;
  }
}

TEST(CudnnAlgorithms, RefuseWhatIsNoConvolutionOfTheirs) {
  fake::FakeRows fake;
  for (const Algorithm& row : fake.rows) {
    EXPECT_NE(row.offer(parse_problem("relu_f32_n1c4h5w5"), fake_device()).refusal, "");
  }
}

TEST(CudnnAlgorithms, RefuseBlockedLayouts) {
  const fake::FakeRows fake;
  const Problem problem = parse_problem("fwd_f16_n2c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1");
  for (const std::string name : {"cudnn9.conv.e0", "cudnn_legacy.fwd.1"}) {
    for (const auto& [src, dst] :
         {std::pair{Layout::kNchw, Layout::kNChw16c}, std::pair{Layout::kNChw16c, Layout::kNchw}}) {
      EXPECT_EQ(fake.row(name).offer_one(problem, fake_device(), {name, src, dst}).refusal,
                kStridedOnly);
    }
  }
}

TEST(TorchRuntime, SaysWhatIsMissingWithoutCuda) {
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) != nullptr) {
    GTEST_SKIP() << "this process has torch's CUDA";
  }
  const Runtime runtime = torch_runtime();
  EXPECT_THROW(static_cast<void>(runtime.device()), Error);
  EXPECT_THROW(static_cast<void>(runtime.stream()), Error);
  EXPECT_THROW(static_cast<void>(runtime.is_capturing()), Error);
  EXPECT_EQ(runtime.on_device(-1), nullptr);
}

TEST(TorchRuntime, TurnsTorchsErrorsIntoItsOwn) {
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) == nullptr) {
    GTEST_SKIP() << "this process has no torch with CUDA";
  }
  if (c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount() > 0) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  const Runtime runtime = torch_runtime();
  EXPECT_THROW(static_cast<void>(runtime.is_capturing()), Error);
  EXPECT_THROW(static_cast<void>(runtime.on_device(0)), Error);
}

TEST(RequireApi, ThrowsTheAbsence) {
  const Library none = {[] { return LoadedApi{nullptr, "there is none"}; }, {}};
  const Problem conv = parse_problem("fwd_f32_n1c4h5w5_k4r3s3_st1x1_pad1x1_dil1x1_g1");
  EXPECT_EQ(make_legacy_algorithm(Direction::kForward, none).offer(conv, fake_device()).refusal,
            "there is none");
  try {
    static_cast<void>(require_api(none));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "TA5101 cuDNN is absent: there is none");
  }
}

}  // namespace
}  // namespace torchalgo::cudnn
