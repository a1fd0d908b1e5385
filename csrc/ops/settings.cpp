// SPDX-License-Identifier: BSD-3-Clause
#include "ops/settings.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/fork_mutex.h"

namespace torchalgo {
namespace {

std::atomic<bool> strict_setting = false;

struct Counters {
  ForkMutex mutex;
  std::map<std::string, Fallback> by_layer;
  std::set<std::pair<std::string, std::string>> seen;  // layer and reason
};

Counters& counters() {
  static Counters instance;
  return instance;
}

// The settings are replaced as a whole, so that a reader on another thread never sees half a
// change.
struct Shared {
  ForkMutex mutex;  // guards `settings`
  std::shared_ptr<const ConvSettings> settings = std::make_shared<const ConvSettings>();
  std::atomic<std::uint64_t> generation = 1;  // of `settings`
};

Shared& shared() {
  static Shared instance;
  return instance;
}

template <typename T>
T replace(T ConvSettings::*member, T value) {
  Shared& state = shared();
  const std::lock_guard lock(state.mutex);
  auto changed = std::make_shared<ConvSettings>(*state.settings);
  T old = std::exchange((*changed).*member, std::move(value));
  ++changed->generation;
  state.settings = changed;
  state.generation.store(changed->generation, std::memory_order_release);
  return old;
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
  counters().seen.clear();
}

bool count_fallback(const std::string& layer, const std::string& reason) {
  const std::lock_guard lock(counters().mutex);
  Fallback& fallback = counters().by_layer[layer];
  ++fallback.count;
  if (fallback.count > 1 && fallback.reason == reason) return false;
  fallback.reason = reason;
  return counters().seen.emplace(layer, reason).second;
}

const Choice& DirectionChoices::of(Direction direction) const {
  return direction == Direction::kForward        ? forward
         : direction == Direction::kBackwardData ? backward_data
                                                 : backward_filter;
}

bool DirectionChoices::is_empty() const {
  return forward.empty() && backward_data.empty() && backward_filter.empty();
}

bool ConvSettings::is_free() const {
  return context.is_empty() && flags.is_empty() && planned.empty();
}

const ConvSettings& conv_settings() {
  thread_local std::shared_ptr<const ConvSettings> mine;
  Shared& state = shared();
  if (!mine || mine->generation != state.generation.load(std::memory_order_acquire)) {
    const std::lock_guard lock(state.mutex);
    mine = state.settings;
  }
  return *mine;
}

DirectionChoices set_context_choices(DirectionChoices choices) {
  return replace(&ConvSettings::context, std::move(choices));
}

DirectionChoices set_flag_choices(DirectionChoices choices) {
  return replace(&ConvSettings::flags, std::move(choices));
}

PlannedChoices set_planned_choices(PlannedChoices choices) {
  return replace(&ConvSettings::planned, std::move(choices));
}

ConflictPolicy set_conflict_policy(ConflictPolicy policy) {
  return replace(&ConvSettings::conflict, policy);
}

}  // namespace torchalgo
