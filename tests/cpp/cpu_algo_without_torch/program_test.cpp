// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace torchalgo {
namespace {

TEST(WithoutTorch, RunsInAProgramWithoutTorch) {
  std::ifstream maps("/proc/self/maps");
  ASSERT_TRUE(maps);
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find("libtorch"), std::string::npos) << line;
    EXPECT_EQ(line.find("libc10"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace torchalgo
