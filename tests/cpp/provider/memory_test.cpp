// SPDX-License-Identifier: BSD-3-Clause
#include "provider/memory.h"

#include <gtest/gtest.h>

namespace torchalgo {
namespace {

TEST(EmptyReused, IsATensorLikeTorchsOwn) {
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c}) {
    at::Tensor tensor = empty_tensor({2, 19, 31, 37}, DType::kF32, layout);
    EXPECT_TRUE(tensor.is_non_overlapping_and_dense());
    EXPECT_TRUE(tensor.storage().resizable());
    EXPECT_EQ(tensor.sizes().size(), is_blocked(layout) ? 5U : 4U);
    tensor.fill_(2);
    EXPECT_EQ(tensor.sum().item<float>(), 2.0F * static_cast<float>(tensor.numel()));
    tensor.resize_({300, 300});  // past its own memory
    EXPECT_EQ(tensor.fill_(1).sum().item<float>(), 90'000.0F);
  }
  EXPECT_EQ(empty_tensor({0, 3, 8, 8}, DType::kF32, Layout::kNchw).numel(), 0);
}

TEST(EmptyReused, TheNextOneHasTheMemoryOfTheLast) {
  const void* first = nullptr;
  for (int turn = 0; turn < 3; ++turn) {
    const at::Tensor tensor = empty_bytes(1 << 20, at::kCPU);
    if (turn == 0) first = tensor.data_ptr();
#if !defined(__SANITIZE_ADDRESS__)
    EXPECT_EQ(tensor.data_ptr(), first);
#endif
  }
}

}  // namespace
}  // namespace torchalgo
