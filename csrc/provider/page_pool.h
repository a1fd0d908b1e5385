// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/fork_mutex.h"

namespace torchalgo {

/// A memory pool for blocks that are taken and given back again and again, such as the tensors of
/// an inference.
///
/// The memory lies in slabs of huge pages, if the system grants them on request, since a network's
/// tensors span more 4 KiB pages than a TLB holds. Free blocks are used again before fresh memory,
/// the lowest address first. So the same calls get the same memory, which is still in the caches. A
/// heap would return it to the system and page it in again. The pool is thread-safe.
class PagePool {
 public:
  struct Stats {
    std::size_t taken = 0;   // bytes in use
    std::size_t mapped = 0;  // address space of all slabs; untouched pages take no memory
  };

  /// @param most_idle  bytes of wholly free slabs that are kept for later use.
  explicit PagePool(std::size_t most_idle);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  /// Returns a block at a multiple of 64 bytes with undefined content. @throws std::bad_alloc
  [[nodiscard]] void* take(std::size_t bytes);
  /// Gives a block back to its pool. @param data  from take() of any pool.
  static void give(void* data) noexcept;
  /// Keeps `more` bytes of wholly free slabs in addition. A negative number takes this back.
  void keep_idle(std::ptrdiff_t more) noexcept;
  /// Gives all wholly free slabs back to the system.
  void release_idle() noexcept;
  [[nodiscard]] Stats stats() const;

 private:
  struct Slab;
  struct Header;

  [[nodiscard]] void* take_from(Slab& slab, std::size_t bytes);
  void give_back(Header* header) noexcept;
  void unmap_idle(std::size_t most) noexcept;

  mutable ForkMutex mutex_;  // guards all that follows
  std::size_t most_idle_;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

}  // namespace torchalgo
