// SPDX-License-Identifier: BSD-3-Clause
#include "base/usable_threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <climits>
#include <filesystem>
#include <fstream>
#include <string>

namespace torchalgo {
namespace {

namespace fs = std::filesystem;

const std::string kNoQuota = "max 100000";

// A root of a file system with the files that a test writes.
class QuotaThreads : public testing::Test {
 protected:
  QuotaThreads() { fs::remove_all(root_); }
  ~QuotaThreads() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
  }
  void mount_v2(const std::string& group = "/") const {
    write("proc/self/mountinfo",
          "23 1 254:0 / / rw - ext4 /dev/root rw\n"
          "31 23 0:28 " +
              group + " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw");
  }
  void mount_v1(const std::string& group) const {
    write("proc/self/mountinfo",
          "33 31 0:30 " + group +
              " /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
              "32 31 0:29 " +
              group + " /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct");
  }
  [[nodiscard]] int threads() const { return quota_threads(root_); }

  fs::path root_ = fs::temp_directory_path() / ("quota_threads_" + std::to_string(getpid()));
};

TEST_F(QuotaThreads, AreUnlimitedWithoutGroups) {
  EXPECT_EQ(threads(), INT_MAX);
  mount_v2();
  EXPECT_EQ(threads(), INT_MAX);
  write("proc/self/cgroup", "0::/a");
  write("sys/fs/cgroup/a/cpu.max", kNoQuota);
  EXPECT_EQ(threads(), INT_MAX);
  write("sys/fs/cgroup/a/cpu.max", "nonsense");
  EXPECT_EQ(threads(), INT_MAX);
}

TEST_F(QuotaThreads, AreRoundedUpAndAtLeastOne) {
  mount_v2();
  write("proc/self/cgroup", "0::/a");
  for (const auto& [quota, expected] : {std::pair{"100000 100000", 1},
                                        {"100001 100000", 2},
                                        {"5000 100000", 1},
                                        {"400000 200000", 2}}) {
    write("sys/fs/cgroup/a/cpu.max", quota);
    EXPECT_EQ(threads(), expected) << quota;
  }
}

TEST_F(QuotaThreads, AreTheLeastOfAllGroupsThatContainTheProcess) {
  mount_v2();
  write("proc/self/cgroup", "1:name=systemd:/other\n0::/a/b/c");
  write("sys/fs/cgroup/a/cpu.max", "200000 100000");
  write("sys/fs/cgroup/a/b/cpu.max", "700000 100000");
  write("sys/fs/cgroup/a/b/c/cpu.max", kNoQuota);
  write("sys/fs/cgroup/a/b/d/cpu.max", "100000 100000");  // another process
  EXPECT_EQ(threads(), 2);
}

TEST_F(QuotaThreads, OfAContainerThatSeesOnlyItsOwnGroup) {
  mount_v2();  // with a namespace of groups
  write("proc/self/cgroup", "0::/");
  write("sys/fs/cgroup/cpu.max", "300000 100000");
  EXPECT_EQ(threads(), 3);
  mount_v2("/docker/x");  // without one
  write("proc/self/cgroup", "0::/docker/x");
  EXPECT_EQ(threads(), 3);
  write("proc/self/cgroup", "0::/docker/x/y");
  write("sys/fs/cgroup/y/cpu.max", "100000 100000");
  EXPECT_EQ(threads(), 1);
  write("proc/self/cgroup", "0::/elsewhere");
  EXPECT_EQ(threads(), 3);
}

TEST_F(QuotaThreads, ReadTheFilesOfVersionOne) {
  mount_v1("/docker/x");
  write("proc/self/cgroup", "5:cpuset:/other\n4:cpu,cpuacct:/docker/x/y\n0::/");
  EXPECT_EQ(threads(), INT_MAX);
  const std::string group = "sys/fs/cgroup/cpu,cpuacct/";
  write(group + "cpu.cfs_quota_us", "-1");
  write(group + "cpu.cfs_period_us", "100000");
  EXPECT_EQ(threads(), INT_MAX);
  write(group + "y/cpu.cfs_quota_us", "150000");
  EXPECT_EQ(threads(), INT_MAX);  // of an unknown period
  write(group + "y/cpu.cfs_period_us", "100000");
  EXPECT_EQ(threads(), 2);
  write(group + "y/cpu.cfs_period_us", "50000");
  EXPECT_EQ(threads(), 3);
  write(group + "cpu.cfs_quota_us", "50000");
  EXPECT_EQ(threads(), 1);
}

TEST_F(QuotaThreads, AreTheLeastOfBothVersions) {
  write("proc/self/mountinfo",
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "33 31 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
  write("proc/self/cgroup", "4:cpu:/\n0::/");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(threads(), 2);
  write("sys/fs/cgroup/unified/cpu.max", "100000 100000");
  EXPECT_EQ(threads(), 1);
}

TEST_F(QuotaThreads, BoundTheUsableThreads) {
  mount_v2();
  write("proc/self/cgroup", "0::/a");
  write("sys/fs/cgroup/a/cpu.max", "100000 100000");
  EXPECT_EQ(usable_threads(root_), 1);
}

TEST(UsableThreads, AreNoMoreThanTheProcessorsOfTheThread) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(usable_threads(), 1);
  EXPECT_LE(usable_threads(), CPU_COUNT(&before));
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_threads(), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace
}  // namespace torchalgo
