// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <pthread.h>

#include <array>
#include <mutex>
#include <set>

namespace torchalgo {

/// A mutex that is always free in the child after fork(), because fork() waits until each such
/// mutex is free. A plain mutex stays locked in the child for ever if another thread of the parent
/// held it during fork().
class ForkMutex {
 public:
  /// The order of locking. A thread that holds an outer mutex may lock an inner one. No other
  /// nesting is allowed. A thread that holds such a mutex must not wait for a thread that forks, or
  /// for Python's interpreter.
  enum class Level { kOuter, kInner };

  explicit ForkMutex(Level level = Level::kInner) : group_(groups()[static_cast<int>(level)]) {
    const std::lock_guard lock(group_.mutex);
    group_.members.insert(this);
  }
  ~ForkMutex() {
    const std::lock_guard lock(group_.mutex);
    group_.members.erase(this);
  }
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Group {
    std::mutex mutex;  // guards `members`; held during fork()
    std::set<ForkMutex*> members;
  };
  using Groups = std::array<Group, 2>;

  // Never destroyed: other static objects hold mutexes until the end.
  static Groups& groups() {
    static Groups* const instance = [] {
      pthread_atfork(&lock_all, &unlock_all, &unlock_all);
      return new Groups;
    }();
    return *instance;
  }

  static void lock_all() {
    for (Group& group : groups()) {
      group.mutex.lock();
      for (ForkMutex* member : group.members) member->lock();
    }
  }
  static void unlock_all() {
    for (Group& group : groups()) {
      for (ForkMutex* member : group.members) member->unlock();
      group.mutex.unlock();
    }
  }

  Group& group_;
  std::mutex mutex_;
};

}  // namespace torchalgo
