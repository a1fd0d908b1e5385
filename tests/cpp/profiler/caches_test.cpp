// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/caches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace torchalgo {
namespace {

TEST(FlushCaches, LeavesTheDataAsTheyAreWhereverTheyBegin) {
  std::vector<std::uint8_t> data(10'000);
  std::iota(data.begin(), data.end(), std::uint8_t{0});
  const std::vector<std::uint8_t> before = data;
  for (const std::size_t first : {0, 1, 63, 64, 100}) {
    for (const std::size_t bytes : {0, 1, 63, 64, 65, 9000}) flush_caches(&data[first], bytes);
  }
  EXPECT_EQ(data, before);
}

TEST(WeightsIn, DependsOnTheModelsSize) {
  Device device;
  device.l2_bytes = 1 << 20;
  EXPECT_EQ(weights_in(0, device), WeightsIn::kL2);
  EXPECT_EQ(weights_in(1 << 20, device), WeightsIn::kL2);
  EXPECT_EQ(weights_in((1 << 20) + 1, device), WeightsIn::kPastL2);
  EXPECT_EQ(weights_in(kLargeCacheBytes, device), WeightsIn::kPastL2);
  EXPECT_EQ(weights_in(kLargeCacheBytes + 1, device), WeightsIn::kNoCache);
  EXPECT_EQ(weights_in(kChangedWeights, device), WeightsIn::kChanged);
}

}  // namespace
}  // namespace torchalgo
