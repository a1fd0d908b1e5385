// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace torchalgo::cudnn {

/// A map that removes the least recently used entry when it is full. `Hash` and `Equal` also take
/// the keys that find() and add() are called with, so that a lookup need not build a `Key`.
template <typename Key, typename Value, typename Hash, typename Equal = std::equal_to<>>
class LruCache {
 public:
  explicit LruCache(std::size_t limit) : limit_(limit) {}

  /// Returns the value, which then counts as used, or Value() if there is none.
  template <typename K>
  [[nodiscard]] Value find(const K& key) {
    const auto [first, last] = by_hash_.equal_range(Hash()(key));
    for (auto at = first; at != last; ++at) {
      if (!Equal()(at->second->key, key)) continue;
      entries_.splice(entries_.begin(), entries_, at->second);
      return at->second->value;
    }
    return Value();
  }

  /// Adds a value that find() did not find. Returns the number of entries that were removed.
  template <typename K>
  std::size_t add(const K& key, Value value) {
    const std::size_t hash = Hash()(key);
    entries_.push_front({Key(key), hash, std::move(value)});
    by_hash_.emplace(hash, entries_.begin());
    std::size_t forgotten = 0;
    for (; entries_.size() > limit_ && entries_.size() > 1; ++forgotten) forget_last();
    return forgotten;
  }

  /// Counts the values for which `is_used(value)` returns true as used after all others.
  template <typename IsUsed>
  void refresh(const IsUsed& is_used) {
    Entries used;
    for (auto at = entries_.begin(); at != entries_.end();) {
      const auto entry = at++;
      if (is_used(entry->value)) used.splice(used.end(), entries_, entry);
    }
    entries_.splice(entries_.begin(), used);
  }

  [[nodiscard]] std::size_t size() const { return entries_.size(); }
  void set_limit(std::size_t limit) { limit_ = limit; }  // takes effect at the next add()
  void clear() {
    by_hash_.clear();
    entries_.clear();
  }

 private:
  struct Entry {
    Key key;
    std::size_t hash;
    Value value;
  };
  using Entries = std::list<Entry>;

  void forget_last() {
    const auto last = std::prev(entries_.end());
    auto at = by_hash_.equal_range(last->hash).first;
    while (at->second != last) ++at;
    by_hash_.erase(at);
    entries_.pop_back();
  }

  std::size_t limit_;
  Entries entries_;  // the most recently used first
  std::unordered_multimap<std::size_t, typename Entries::iterator> by_hash_;
};

/// A cache of answers by the text of the question, which threads share. If two threads ask for an
/// answer at once, it may be made twice.
template <typename Value>
class AnswerCache {
 public:
  explicit AnswerCache(std::size_t limit) : answers_(limit) {}

  /// Returns null if there is none.
  [[nodiscard]] std::shared_ptr<const Value> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    return answers_.find(key);
  }

  /// Returns the answer for `key`, or calls `make` and keeps its result. `make` runs outside the
  /// lock. If it throws, nothing is kept.
  [[nodiscard]] std::shared_ptr<const Value> find_or_make(const std::string& key,
                                                          const std::function<Value()>& make) {
    if (auto known = find(key)) return known;
    auto made = std::make_shared<const Value>(make());
    const std::lock_guard lock(mutex_);
    if (auto known = answers_.find(key)) return known;
    answers_.add(key, made);
    return made;
  }

  [[nodiscard]] std::size_t size() {
    const std::lock_guard lock(mutex_);
    return answers_.size();
  }

 private:
  std::mutex mutex_;
  LruCache<std::string, std::shared_ptr<const Value>, std::hash<std::string>> answers_;
};

}  // namespace torchalgo::cudnn
