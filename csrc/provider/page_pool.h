// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "base/fork_mutex.h"

namespace torchalgo {

/// Memory that is taken and given back again and again, as the tensors of an inference are.
///
/// It lies in slabs of huge pages, where the system has them for those who ask: a network's tensors
/// span more 4 KiB pages than a TLB holds. What was given back is taken again before fresh memory
/// is, the lowest address first, so that the same calls find the same, warm, memory; a heap would
/// hand it to the system and fault it in again. Safe from several threads.
class PagePool {
 public:
  struct Stats {
    std::size_t taken = 0;   // bytes in use
    std::size_t mapped = 0;  // address space of all slabs; what was never touched takes no memory
  };

  /// @param most_idle  bytes of wholly free slabs that are kept for later.
  explicit PagePool(std::size_t most_idle);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool();

  /// At a multiple of 64; content undefined. @throws std::bad_alloc
  [[nodiscard]] void* take(std::size_t bytes);
  /// @param data  from take() of any pool.
  static void give(void* data) noexcept;
  /// Hands all wholly free slabs back to the system.
  void release_idle() noexcept;
  [[nodiscard]] Stats stats() const;

 private:
  struct Slab;
  struct Header;

  [[nodiscard]] void* take_from(Slab& slab, std::size_t bytes);
  void give_back(Header* header) noexcept;
  void unmap_idle(std::size_t most) noexcept;

  const std::size_t most_idle_;
  mutable ForkMutex mutex_;  // guards the slabs
  std::vector<std::unique_ptr<Slab>> slabs_;
};

}  // namespace torchalgo
