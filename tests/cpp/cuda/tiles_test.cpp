// SPDX-License-Identifier: BSD-3-Clause
#include "cuda/tiles.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace torchalgo::cuda {
namespace {

constexpr std::int64_t kNothing = -1;

std::string spell(const Transpose& problem, int element_bytes, int read_bits, int write_bits) {
  return fmt::format("{}x{}x{} of {} bytes, vectors {} {}", problem.images, problem.rows,
                     problem.cols, element_bytes, 1 << read_bits, 1 << write_bits);
}

// Runs every thread of every block as transform.cu does, on element numbers instead of data, and
// looks at each access.
class Machine {
 public:
  Machine(const Transpose& problem, const Tiling& tiling, std::string name)
      : problem_(problem),
        tiling_(tiling),
        name_(std::move(name)),
        dst_(static_cast<std::size_t>(size()), kNothing) {}

  void run() {
    for (std::int64_t index = 0; index < tiling_.tile_count(); ++index) {
      // Of another tile nothing may be read.
      shared_.assign(static_cast<std::size_t>(tiling_.shared_elements()), kNothing);
      const Tile tile = tile_at(tiling_, index);
      for (int step = 0; step < read_steps(tiling_, tile); ++step) {
        for (int thread = 0; thread < kTileThreads; ++thread) {
          read(read_access(tiling_, tile, step, thread));
        }
      }
      for (int step = 0; step < write_steps(tiling_, tile); ++step) {
        for (int thread = 0; thread < kTileThreads; ++thread) {
          write(write_access(tiling_, tile, step, thread));
        }
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void expect_transposed() const {
    const auto [images, rows, cols] = problem_;
    for (std::int64_t i = 0; i < size(); ++i) {
      const std::int64_t image = i / (rows * cols), col = i / rows % cols, row = i % rows;
      ASSERT_EQ(dst_[static_cast<std::size_t>(i)], image * rows * cols + row * cols + col)
          << name_ << " at " << i;
    }
  }

 private:
  [[nodiscard]] std::int64_t size() const {
    return problem_.images * problem_.rows * problem_.cols;
  }

  void read(const Access& access) {
    if (!access.exists) return;
    const int count = 1 << tiling_.read_bits;
    ASSERT_TRUE(access.offset >= 0 && access.offset + count <= size()) << name_;
    ASSERT_EQ(access.offset % count, 0) << name_ << ": a misaligned read";
    for (int i = 0; i < count; ++i) {
      ASSERT_LT(access.shared + i, tiling_.shared_elements()) << name_;
      std::int64_t& cell = shared_[static_cast<std::size_t>(access.shared + i)];
      ASSERT_EQ(cell, kNothing) << name_ << ": two threads write one cell";
      cell = access.offset + i;
    }
  }

  void write(const Access& access) {
    if (!access.exists) return;
    const int count = 1 << tiling_.write_bits;
    ASSERT_TRUE(access.offset >= 0 && access.offset + count <= size()) << name_;
    ASSERT_EQ(access.offset % count, 0) << name_ << ": a misaligned write";
    for (int i = 0; i < count; ++i) {
      const int at = access.shared + i * tiling_.pitch;
      ASSERT_LT(at, tiling_.shared_elements()) << name_;
      ASSERT_NE(shared_[static_cast<std::size_t>(at)], kNothing) << name_ << ": reads nothing";
      std::int64_t& cell = dst_[static_cast<std::size_t>(access.offset + i)];
      ASSERT_EQ(cell, kNothing) << name_ << ": writes an element twice";
      cell = shared_[static_cast<std::size_t>(at)];
    }
  }

  Transpose problem_;
  Tiling tiling_;
  std::string name_;
  std::vector<std::int64_t> shared_, dst_;
};

void expect_right(const Transpose& problem, int element_bytes, int read_bits, int write_bits) {
  if (problem.cols % (1 << read_bits) != 0 || problem.rows % (1 << write_bits) != 0) return;
  Machine machine(problem, make_tiling(problem, element_bytes, read_bits, write_bits),
                  spell(problem, element_bytes, read_bits, write_bits));
  machine.run();
  if (!testing::Test::HasFatalFailure()) machine.expect_transposed();
}

TEST(Tiles, MoveEveryElementOnceInEverySizeAndVectorWidth) {
  const std::vector<std::int64_t> sides = {1,  2,  3,  4,  7,  8,  16, 24,
                                           31, 32, 49, 63, 64, 65, 72, 196};
  for (const std::int64_t rows : sides) {
    for (const std::int64_t cols : sides) {
      for (const int element_bytes : {2, 4}) {
        for (const int read_bits : {0, 2, 3}) {
          for (const int write_bits : {0, 2, 3}) {
            expect_right({2, rows, cols}, element_bytes, read_bits, write_bits);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Tiles, MoveEveryElementOnceInLongThinImages) {
  for (const std::int64_t thin : {1, 2, 3, 4, 5, 17}) {
    for (const std::int64_t length : {1023, 1024, 4096, 5000}) {
      for (const int element_bytes : {2, 4}) {
        expect_right({1, thin, length}, element_bytes, 0, 0);
        expect_right({1, thin, length}, element_bytes, 2, 0);
        expect_right({3, length, thin}, element_bytes, 0, 0);
        expect_right({3, length, thin}, element_bytes, 0, 2);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Tiles, NeedNoMoreSharedMemoryThanAnyGpuGivesUnasked) {
  constexpr int kBytes = 48 << 10;
  for (const int element_bytes : {2, 4}) {
    for (std::int64_t rows = 1; rows <= 1 << 14; rows *= 2) {
      for (std::int64_t cols = 1; cols <= 1 << 14; cols *= 2) {
        const Tiling tiling = make_tiling({1, rows, cols}, element_bytes, 0, 0);
        EXPECT_LE(tiling.shared_elements() * element_bytes, kBytes) << rows << "x" << cols;
      }
    }
  }
}

TEST(Tiles, ReachBeyondTheNumbersOf32Bits) {
  const Transpose problem = {70000, 256, 3136};  // 5.6e10 elements
  const Tiling tiling = make_tiling(problem, 2, 3, 3);
  const Tile last = tile_at(tiling, tiling.tile_count() - 1);
  const std::int64_t size = problem.images * problem.rows * problem.cols;
  const Access read = read_access(tiling, last, read_steps(tiling, last) - 1, kTileThreads - 1);
  const Access write = write_access(tiling, last, write_steps(tiling, last) - 1, kTileThreads - 1);
  ASSERT_TRUE(read.exists && write.exists);
  EXPECT_EQ(read.offset, size - 8);
  EXPECT_EQ(write.offset, size - 8);
}

// 32 banks of 4 bytes: how many of a warp's threads meet in the fullest bank.
int bank_conflicts(const Tiling& tiling, int element_bytes, bool is_write) {
  const Tile tile = tile_at(tiling, 0);
  int worst = 0;
  for (int element = 0; element < 1 << (is_write ? tiling.write_bits : tiling.read_bits);
       ++element) {
    std::vector<std::set<int>> words(32);
    for (int thread = 0; thread < 32; ++thread) {
      const Access access =
          is_write ? write_access(tiling, tile, 0, thread) : read_access(tiling, tile, 0, thread);
      if (!access.exists) continue;
      const int at = access.shared + element * (is_write ? tiling.pitch : 1);
      const int word = at * element_bytes / 4;
      words[static_cast<std::size_t>(word % 32)].insert(word);
    }
    for (const auto& bank : words) worst = std::max(worst, static_cast<int>(bank.size()));
  }
  return worst;
}

TEST(Tiles, MeetFewBankConflicts) {
  for (const Transpose& problem : {Transpose{1, 64, 3136}, Transpose{1, 3136, 64},
                                   Transpose{1, 3, 50176}, Transpose{1, 2048, 49}}) {
    for (const int element_bytes : {2, 4}) {
      const int bits = element_bytes == 2 ? 3 : 2;
      const Tiling tiling = make_tiling(problem, element_bytes, problem.cols % 8 == 0 ? bits : 0,
                                        problem.rows % 8 == 0 ? bits : 0);
      EXPECT_LE(bank_conflicts(tiling, element_bytes, false), 4)
          << spell(problem, element_bytes, tiling.read_bits, tiling.write_bits) << " read";
      EXPECT_LE(bank_conflicts(tiling, element_bytes, true), 4)
          << spell(problem, element_bytes, tiling.read_bits, tiling.write_bits) << " write";
    }
  }
}

TEST(VectorBits, NeedsASizeAndAnAddressThatFit) {
  EXPECT_EQ(vector_bits(64, 256, 2, 3), 3);
  EXPECT_EQ(vector_bits(49, 256, 2, 3), 0);
  EXPECT_EQ(vector_bits(64, 256 + 8, 2, 3), 0);
  EXPECT_EQ(vector_bits(64, 256 + 16, 4, 2), 2);
}

TEST(Simplified, MakesOneLongCopyWhereNothingMoves) {
  const Transpose row = simplified({5, 1, 7});
  EXPECT_EQ(row.images, 1);
  EXPECT_EQ(row.rows, 1);
  EXPECT_EQ(row.cols, 35);
  EXPECT_EQ(simplified({5, 7, 1}).cols, 35);
  EXPECT_EQ(simplified({5, 7, 2}).images, 5);
}

}  // namespace
}  // namespace torchalgo::cuda
