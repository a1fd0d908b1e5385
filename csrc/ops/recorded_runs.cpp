// SPDX-License-Identifier: BSD-3-Clause
#include "ops/recorded_runs.h"

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>

#include "base/fork_mutex.h"

namespace torchalgo {
namespace {

std::atomic<bool> recording_setting = false;

struct Runs {
  ForkMutex mutex;
  std::map<std::tuple<std::string, std::string, std::string>, std::int64_t> counts;
};

Runs& runs() {
  static Runs instance;
  return instance;
}

}  // namespace

bool set_recording(bool recording) { return recording_setting.exchange(recording); }

bool is_recording() { return recording_setting.load(std::memory_order_relaxed); }

std::vector<RecordedRun> recorded_runs() {
  const std::lock_guard lock(runs().mutex);
  std::vector<RecordedRun> result;
  for (const auto& [key, count] : runs().counts) {
    result.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), count});
  }
  return result;
}

void reset_recorded_runs() {
  const std::lock_guard lock(runs().mutex);
  runs().counts.clear();
}

void record_run(std::string_view problem, std::string_view primitive, std::string_view step) {
  const std::lock_guard lock(runs().mutex);
  ++runs().counts[{std::string(problem), std::string(primitive), std::string(step)}];
}

}  // namespace torchalgo
