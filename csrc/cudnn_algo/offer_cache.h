// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace torchalgo::cudnn {

/// The last `capacity` answers by key, shared between threads. An answer that two threads want at
/// once may be made twice.
template <typename Value>
class LeastRecentlyUsed {
 public:
  explicit LeastRecentlyUsed(std::size_t capacity) : capacity_(capacity) {}

  [[nodiscard]] std::shared_ptr<const Value> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto known = by_key_.find(key);
    if (known == by_key_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, known->second);
    return known->second->second;
  }

  /// `make` runs outside the lock; if it throws nothing is kept.
  [[nodiscard]] std::shared_ptr<const Value> find_or_make(const std::string& key,
                                                          const std::function<Value()>& make) {
    if (auto known = find(key)) return known;
    auto made = std::make_shared<const Value>(make());
    const std::lock_guard lock(mutex_);
    const auto known = by_key_.find(key);
    if (known != by_key_.end()) return known->second->second;
    entries_.emplace_front(key, made);
    by_key_.emplace(key, entries_.begin());
    if (entries_.size() > capacity_) {
      by_key_.erase(entries_.back().first);
      entries_.pop_back();
    }
    return made;
  }

  [[nodiscard]] std::size_t size() {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  using Entries = std::list<std::pair<std::string, std::shared_ptr<const Value>>>;
  const std::size_t capacity_;
  std::mutex mutex_;
  Entries entries_;  // most recent first
  std::unordered_map<std::string, typename Entries::iterator> by_key_;
};

}  // namespace torchalgo::cudnn
