// SPDX-License-Identifier: BSD-3-Clause
#include "provider/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>

namespace torchalgo {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSlab = std::size_t{64} << 20;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Maps `bytes`, a multiple of kHugePage, at an address that is a multiple of kHugePage.
char* map_huge_pages(std::size_t bytes) {
  const std::size_t reserved = bytes + kHugePage;
  void* const mapped = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  char* const first = static_cast<char*>(mapped);
  const std::size_t skipped = rounded_up(reinterpret_cast<std::uintptr_t>(first), kHugePage) -
                              reinterpret_cast<std::uintptr_t>(first);
  if (skipped > 0) munmap(first, skipped);
  munmap(first + skipped + bytes, kHugePage - skipped);
#ifdef MADV_HUGEPAGE
  madvise(first + skipped, bytes, MADV_HUGEPAGE);  // only a request: small pages work too
#endif
  return first + skipped;
}

// The sizes of free blocks by address; adjacent blocks are merged.
using FreeBlocks = std::map<char*, std::size_t>;

}  // namespace

struct PagePool::Slab {
  PagePool* pool = nullptr;
  char* memory = nullptr;
  std::size_t bytes = 0;
  std::size_t taken = 0;
  FreeBlocks free;

  // The delegation has the destructor unmap the memory if `free` cannot grow.
  Slab(PagePool* pool, std::size_t bytes) : Slab(pool, map_huge_pages(bytes), bytes) {
    free.emplace(memory, bytes);
  }
  Slab(PagePool* pool, char* memory, std::size_t bytes)
      : pool(pool), memory(memory), bytes(bytes) {}
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() { munmap(memory, bytes); }
};

// The header in front of each block. It also shifts tensors whose sizes are powers of two.
// Otherwise they would lie at multiples of 4 KiB from each other, and their lines would share the
// same cache sets.
struct alignas(kLine) PagePool::Header {
  Slab* slab;
  std::size_t bytes;           // with the header
  FreeBlocks::node_type node;  // for give(), which must not allocate
};

PagePool::PagePool(std::size_t most_idle) : most_idle_(most_idle) {}
PagePool::~PagePool() = default;

void* PagePool::take(std::size_t bytes) {
  const std::size_t all = rounded_up(bytes, kLine) + sizeof(Header);
  const std::lock_guard lock(mutex_);
  for (const auto& slab : slabs_) {
    if (void* const data = take_from(*slab, all); data != nullptr) return data;
  }
  slabs_.push_back(std::make_unique<Slab>(this, std::max(kSlab, rounded_up(all, kHugePage))));
  return take_from(*slabs_.back(), all);
}

void PagePool::keep_idle(std::ptrdiff_t more) noexcept {
  const std::lock_guard lock(mutex_);
  most_idle_ += static_cast<std::size_t>(more);
  unmap_idle(most_idle_);
}

void* PagePool::take_from(Slab& slab, std::size_t bytes) {
  const auto place = std::find_if(slab.free.begin(), slab.free.end(),
                                  [&](const auto& range) { return range.second >= bytes; });
  if (place == slab.free.end()) return nullptr;
  char* const begin = place->first;
  const std::size_t left = place->second - bytes;
  if (left > 0) slab.free.emplace_hint(std::next(place), begin + bytes, left);
  slab.taken += bytes;
  return new (begin) Header{&slab, bytes, slab.free.extract(place)} + 1;
}

void PagePool::give(void* data) noexcept {
  Header* const header = static_cast<Header*>(data) - 1;
  header->slab->pool->give_back(header);
}

void PagePool::give_back(Header* header) noexcept {
  const std::lock_guard lock(mutex_);
  Slab& slab = *header->slab;
  char* begin = reinterpret_cast<char*>(header);
  std::size_t bytes = header->bytes;
  FreeBlocks::node_type node = std::move(header->node);
  header->~Header();
  slab.taken -= bytes;
  auto next = slab.free.upper_bound(begin);
  if (next != slab.free.end() && next->first == begin + bytes) {
    bytes += next->second;
    next = slab.free.erase(next);
  }
  if (next != slab.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      begin = nullptr;
    }
  }
  if (begin != nullptr) {
    node.key() = begin;
    node.mapped() = bytes;
    slab.free.insert(next, std::move(node));
  }
  if (slab.taken == 0) unmap_idle(most_idle_);
}

void PagePool::unmap_idle(std::size_t most) noexcept {
  std::size_t idle = 0;
  std::erase_if(slabs_, [&](const auto& slab) {
    if (slab->taken > 0) return false;
    idle += slab->bytes;
    return idle > most;
  });
}

void PagePool::release_idle() noexcept {
  const std::lock_guard lock(mutex_);
  unmap_idle(0);
}

PagePool::Stats PagePool::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats;
  for (const auto& slab : slabs_) {
    stats.taken += slab->taken;
    stats.mapped += slab->bytes;
  }
  return stats;
}

}  // namespace torchalgo
