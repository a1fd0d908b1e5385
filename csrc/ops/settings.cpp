// SPDX-License-Identifier: BSD-3-Clause
#include "ops/settings.h"

#include <atomic>
#include <mutex>

namespace torchalgo {
namespace {

std::atomic<bool> strict_setting = false;

struct Counters {
  std::mutex mutex;
  std::map<std::string, Fallback> by_layer;
};

Counters& counters() {
  static Counters instance;
  return instance;
}

}  // namespace

bool set_strict(bool strict) { return strict_setting.exchange(strict); }

bool is_strict() { return strict_setting.load(std::memory_order_relaxed); }

std::map<std::string, Fallback> fallbacks() {
  const std::lock_guard lock(counters().mutex);
  return counters().by_layer;
}

void reset_fallbacks() {
  const std::lock_guard lock(counters().mutex);
  counters().by_layer.clear();
}

void count_fallback(const std::string& layer, const std::string& reason) {
  const std::lock_guard lock(counters().mutex);
  Fallback& fallback = counters().by_layer[layer];
  ++fallback.count;
  if (fallback.reason != reason) fallback.reason = reason;
}

}  // namespace torchalgo
