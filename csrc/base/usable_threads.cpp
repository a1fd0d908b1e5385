// SPDX-License-Identifier: BSD-3-Clause
#include "base/usable_threads.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace torchalgo {
namespace {

namespace fs = std::filesystem;

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// A hierarchy of control groups, which may limit CPU time.
struct Hierarchy {
  bool is_v2 = false;
  std::string root, mount;  // the group that is visible at a directory, and this directory
};

// A line is "36 35 98:0 /root /mount options [more ...] - type source".
std::vector<Hierarchy> hierarchies(const fs::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string skipped, type;
    Hierarchy hierarchy;
    words >> skipped >> skipped >> skipped >> hierarchy.root >> hierarchy.mount;
    while (words >> skipped && skipped != "-") {
    }
    words >> type;
    hierarchy.is_v2 = type == "cgroup2";
    if (hierarchy.is_v2 || type == "cgroup") found.push_back(std::move(hierarchy));
  }
  return found;
}

// Returns the group of this process. A line is "id:controllers:/group"; in v2 it is "0::/group".
std::string group_of(const fs::path& root, bool is_v2) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? line.starts_with("0::") : has_word(controllers, "cpu"))
      return line.substr(second + 1);
  }
  return "/";
}

// Returns the quota of one group in processors; infinity if there is none.
double quota_of(const fs::path& group, bool is_v2) {
  double quota = -1, period = -1;  // "max" is not a number, and -1 means no quota in v1
  if (is_v2) {
    std::ifstream(group / "cpu.max") >> quota >> period;
  } else {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : HUGE_VAL;
}

// Returns the least quota of the group of this process and the groups that contain it.
double least_quota(const fs::path& root, const Hierarchy& hierarchy) {
  const fs::path top = (root / hierarchy.mount.substr(1)).lexically_normal();
  // A container may see its own group only, while the path is that of the host. It leads to no file
  // then.
  const fs::path group =
      fs::path(group_of(root, hierarchy.is_v2)).lexically_relative(hierarchy.root);
  double least = quota_of(top, hierarchy.is_v2);
  fs::path path = top;
  for (const fs::path& part : group) {
    path /= part;
    least = std::min(least, quota_of(path, hierarchy.is_v2));
  }
  return least;
}

int affinity_threads() {
#if defined(__linux__)
  // The mask of a machine with more processors than cpu_set_t has needs a larger set.
  for (int processors = CPU_SETSIZE; processors <= 1 << 16; processors *= 2) {
    std::vector<cpu_set_t> set(static_cast<std::size_t>(processors / CPU_SETSIZE));
    if (sched_getaffinity(0, set.size() * sizeof(cpu_set_t), set.data()) == 0)
      return CPU_COUNT_S(set.size() * sizeof(cpu_set_t), set.data());
  }
#endif
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

int quota_threads(const fs::path& root) {
  double least = HUGE_VAL;
  for (const Hierarchy& hierarchy : hierarchies(root))
    least = std::min(least, least_quota(root, hierarchy));
  return least < INT_MAX ? static_cast<int>(std::ceil(least)) : INT_MAX;
}

int usable_threads(const fs::path& root) {
  return std::min(affinity_threads(), quota_threads(root));
}

}  // namespace torchalgo
