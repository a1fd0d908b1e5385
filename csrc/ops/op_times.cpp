// SPDX-License-Identifier: BSD-3-Clause
#include "ops/op_times.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "base/fork_mutex.h"

namespace torchalgo {
namespace {

constexpr std::size_t kMaxRecords = 1 << 20;  // bounds the memory if timing is never switched off

std::atomic<bool> timing_setting = false;

struct Records {
  ForkMutex mutex;
  std::vector<OpTime> times;
};

Records& records() {
  static Records instance;
  return instance;
}

}  // namespace

bool set_op_timing(bool timing) { return timing_setting.exchange(timing); }

bool is_op_timing() { return timing_setting.load(std::memory_order_relaxed); }

std::vector<OpTime> take_op_times() {
  const std::lock_guard lock(records().mutex);
  return std::exchange(records().times, {});
}

void record_op_time(OpTime time) {
  const std::lock_guard lock(records().mutex);
  if (records().times.size() < kMaxRecords) records().times.push_back(std::move(time));
}

}  // namespace torchalgo
