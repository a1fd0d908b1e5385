// SPDX-License-Identifier: BSD-3-Clause
#include "provider/page_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace torchalgo {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(PagePool, GivesTheSameMemoryToTheSameCalls) {
  PagePool pool(256 * kMiB);
  std::vector<void*> first, second;
  for (std::vector<void*>* const run : {&first, &second}) {
    void* const a = pool.take(100'000);
    void* const b = pool.take(3 * kMiB);
    PagePool::give(a);
    void* const c = pool.take(50'000);  // where a was
    *run = {a, b, c};
    PagePool::give(c);
    PagePool::give(b);
  }
  EXPECT_EQ(first, second);
  EXPECT_EQ(first[0], first[2]);
  EXPECT_EQ(pool.stats().taken, 0U);
}

TEST(PagePool, BlocksAreAlignedAndNeverOverlap) {
  PagePool pool(0);
  struct Block {
    unsigned char* data;
    std::size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> blocks;
  std::mt19937 rng(1);
  const auto holds_its_mark = [](const Block& block) {
    for (std::size_t i = 0; i < block.bytes; i += 997) {
      if (block.data[i] != block.mark) return false;
    }
    return block.data[block.bytes - 1] == block.mark;
  };
  for (int step = 0; step < 4000; ++step) {
    if (blocks.empty() || rng() % 100 < 52) {
      const std::size_t bytes = 1 + rng() % (rng() % 50 == 0 ? 4 * kMiB : 60'000);
      auto* const data = static_cast<unsigned char*>(pool.take(bytes));
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
      const auto mark = static_cast<unsigned char>(rng());
      std::memset(data, mark, bytes);
      blocks.push_back({data, bytes, mark});
    } else {
      std::swap(blocks[rng() % blocks.size()], blocks.back());
      ASSERT_TRUE(holds_its_mark(blocks.back()));
      PagePool::give(blocks.back().data);
      blocks.pop_back();
    }
  }
  for (const Block& block : blocks) {
    ASSERT_TRUE(holds_its_mark(block));
    PagePool::give(block.data);
  }
  EXPECT_EQ(pool.stats().taken, 0U);
  EXPECT_EQ(pool.stats().mapped, 0U);  // all joined again, and handed back
}

TEST(PagePool, KeepsWhatIsIdleUpToItsLimitUntilItIsReleased) {
  PagePool pool(100 * kMiB);
  void* const small = pool.take(kMiB);
  void* const large = pool.take(200 * kMiB);  // in a slab of its own
  PagePool::give(small);
  PagePool::give(large);
  EXPECT_EQ(pool.stats().mapped, 64 * kMiB);
  pool.release_idle();
  EXPECT_EQ(pool.stats().mapped, 0U);
}

TEST(PagePool, KeepsMoreWhileItIsAskedTo) {
  PagePool pool(0);
  pool.keep_idle(static_cast<std::ptrdiff_t>(100 * kMiB));
  PagePool::give(pool.take(kMiB));
  EXPECT_EQ(pool.stats().mapped, 64 * kMiB);
  pool.keep_idle(-static_cast<std::ptrdiff_t>(100 * kMiB));
  EXPECT_EQ(pool.stats().mapped, 0U);
}

// A sanitizer's heap ends the process when it is full.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Fills the address space, so that nothing can be allocated until this process ends.
void use_all_memory() {
  const rlimit limit = {std::size_t{64} << 20, std::size_t{64} << 20};  // less than is used
  ::setrlimit(RLIMIT_AS, &limit);
  for (std::size_t bytes = kMiB; bytes >= 16; bytes /= 2) {
    const void* volatile last = nullptr;  // a compiler may leave out what nobody reads
    do last = std::malloc(bytes);
    while (last != nullptr);
  }
}

TEST(PagePool, SurvivesWithoutMemoryAndServesWhatItHas) {
  const auto run = [] {
    PagePool pool(256 * kMiB);
    std::array<void*, 9> blocks = {};
    for (void*& block : blocks) block = pool.take(100'000);
    use_all_memory();
    bool has_failed = false;
    try {
      static_cast<void>(pool.take(500 * kMiB));
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) PagePool::give(blocks[i]);  // none merge
    const bool is_reused = pool.take(100'000) == blocks[0];  // needs no new node
    PagePool::give(blocks[0]);
    for (std::size_t i = 1; i < blocks.size(); i += 2) PagePool::give(blocks[i]);
    std::_Exit(has_failed && is_reused && pool.stats().taken == 0 ? 0 : 1);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}
#endif

TEST(PagePool, ThreadsMayGiveWhatOthersTook) {
  PagePool pool(0);
  std::vector<void*> blocks(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < blocks.size(); i += 4) blocks[i] = pool.take(1000 * (i + 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 3 - t; i < blocks.size(); i += 4) PagePool::give(blocks[i]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().taken, 0U);
}

}  // namespace
}  // namespace torchalgo
