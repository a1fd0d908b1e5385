// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpu_algo/kernels/vec_probe.h"
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

using kernels::VecOperation;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Values whose results tell apart operations that are almost the same: rounding once or twice,
/// the sign of a zero, which of two operands a comparison with a NaN returns.
const std::vector<float>& values() {
  static const std::vector<float> values = {0.0F,    -0.0F,      1.0F,        -1.0F,      1.0F / 3,
                                            -7.3F,   1.0000001F, 16777217.0F, -2.5e-41F,  1.2e-38F,
                                            3.1e38F, -3.4e38F,   kInfinity,   -kInfinity, kNan,
                                            0.1F,    5.0e-20F,   12582912.0F};
  return values;
}

/// True if the bits are equal, or both are NaNs.
bool is_same(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// Runs the build for `isa` on one value per lane.
std::vector<float> run(const std::string& isa, VecOperation operation, const std::vector<float>& a,
                       const std::vector<float>& b, const std::vector<float>& c) {
  std::vector<float> dst(a.size());
  TORCHALGO_PICK_KERNEL(isa, run_vec)(operation, a.data(), b.data(), c.data(), dst.data());
  return dst;
}

/// Compares an operation with `expected(a, b, c)` for all triples of values, in every lane.
template <class Expected>
void expect_everywhere(const std::string& isa, VecOperation operation, const Expected& expected) {
  const auto lanes = static_cast<std::size_t>(TORCHALGO_PICK_KERNEL(isa, vec_lanes)());
  const std::size_t count = values().size();
  for (std::size_t first = 0; first < count * count * count; ++first) {
    std::vector<float> a(lanes), b(lanes), c(lanes);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const std::size_t triple = first + lane;
      a[lane] = values()[triple % count];
      b[lane] = values()[triple / count % count];
      c[lane] = values()[triple / count / count % count];
    }
    const std::vector<float> dst = run(isa, operation, a, b, c);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      ASSERT_PRED2(is_same, dst[lane], expected(a[lane], b[lane], c[lane]))
          << isa << " operation " << static_cast<int>(operation) << " of " << a[lane] << ", "
          << b[lane] << ", " << c[lane];
    }
  }
}

TEST(Vec, RoundsAsSingleFloatsDo) {
  for (const std::string& isa : isas()) {
    expect_everywhere(isa, VecOperation::kAdd, [](float a, float b, float) { return a + b; });
    expect_everywhere(isa, VecOperation::kSubtract, [](float a, float b, float) { return a - b; });
    expect_everywhere(isa, VecOperation::kMultiply, [](float a, float b, float) { return a * b; });
    expect_everywhere(isa, VecOperation::kDivide, [](float a, float b, float) { return a / b; });
  }
}

TEST(Vec, FusesMultiplyAddsWhereTheInstructionSetDoes) {
  for (const std::string& isa : isas()) {
    const bool is_fused = isa != "default";
    expect_everywhere(isa, VecOperation::kFmadd, [&](float a, float b, float c) {
      const volatile float product = a * b;
      return is_fused ? std::fma(a, b, c) : product + c;
    });
    expect_everywhere(isa, VecOperation::kFnmadd, [&](float a, float b, float c) {
      const volatile float product = a * b;
      return is_fused ? std::fma(-a, b, c) : c - product;
    });
  }
}

TEST(Vec, ClampsKeepTheNanOfTheirFirstArgument) {
  for (const std::string& isa : isas()) {
    expect_everywhere(isa, VecOperation::kClampMin,
                      [](float a, float b, float) { return a < b ? b : a; });
    expect_everywhere(isa, VecOperation::kClampMax,
                      [](float a, float b, float) { return a > b ? b : a; });
  }
}

TEST(Vec, MaximumIsANanIfEitherArgumentIs) {
  for (const std::string& isa : isas()) {
    expect_everywhere(isa, VecOperation::kMaximum, [](float a, float b, float) {
      return std::isnan(a) || std::isnan(b) ? kNan : a > b ? a : b;
    });
  }
}

TEST(Vec, SelectsByComparisonsWhichAreFalseForNans) {
  for (const std::string& isa : isas()) {
    expect_everywhere(isa, VecOperation::kWhereLess,
                      [](float a, float b, float c) { return a < b ? c : a; });
    expect_everywhere(isa, VecOperation::kWhereAtMost,
                      [](float a, float b, float c) { return a <= b ? c : a; });
  }
}

TEST(Vec, ShiftsBitsAndSpreadsEveryValueToAllLanes) {
  for (const std::string& isa : isas()) {
    expect_everywhere(isa, VecOperation::kShiftLeftBy23, [](float a, float, float) {
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) << 23);
    });
    const auto lanes = static_cast<std::size_t>(TORCHALGO_PICK_KERNEL(isa, vec_lanes)());
    for (const float value : values()) {
      const std::vector<float> a(lanes, value);
      const std::vector<float> dst = run(isa, VecOperation::kSpread, a, a, a);
      for (const float lane : dst) EXPECT_PRED2(is_same, lane, value) << isa;
    }
  }
}

TEST(Vec, InterleavesTwoVectors) {
  for (const std::string& isa : isas()) {
    const int lanes = TORCHALGO_PICK_KERNEL(isa, vec_lanes)();
    std::vector<float> a(lanes), b(lanes), dst(2 * lanes);
    for (int lane = 0; lane < lanes; ++lane) {
      a[lane] = static_cast<float>(2 * lane);
      b[lane] = static_cast<float>(2 * lane + 1);
    }
    TORCHALGO_PICK_KERNEL(isa, interleave_vecs)(a.data(), b.data(), dst.data());
    for (int i = 0; i < 2 * lanes; ++i) EXPECT_EQ(dst[i], static_cast<float>(i)) << isa;
  }
}

TEST(Vec, SumsAllLanesByHalves) {
  for (const std::string& isa : isas()) {
    const int lanes = TORCHALGO_PICK_KERNEL(isa, vec_lanes)();
    std::vector<float> src(lanes);
    for (int lane = 0; lane < lanes; ++lane) src[lane] = 1.0F / static_cast<float>(3 + lane);
    const float sum = TORCHALGO_PICK_KERNEL(isa, sum_of_lanes)(src.data());
    for (int half = lanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) src[i] += src[i + half];
    }
    EXPECT_EQ(sum, src[0]) << isa;
  }
}

/// Floats that end where the next page must not be touched, and begin behind such a page.
class GuardedPage {
 public:
  GuardedPage() : bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    base_ = static_cast<char*>(
        mmap(nullptr, 3 * bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (mprotect(base_ + bytes_, bytes_, PROT_READ | PROT_WRITE) != 0) base_ = nullptr;
  }
  ~GuardedPage() { munmap(base_, 3 * bytes_); }
  GuardedPage(const GuardedPage&) = delete;
  GuardedPage& operator=(const GuardedPage&) = delete;

  [[nodiscard]] bool is_ready() const { return base_ != nullptr; }
  [[nodiscard]] float* begin() const { return reinterpret_cast<float*>(base_ + bytes_); }
  [[nodiscard]] float* end() const { return reinterpret_cast<float*>(base_ + 2 * bytes_); }

 private:
  std::size_t bytes_;
  char* base_;
};

TEST(Vec, LoadsAndStoresNeedNoAlignment) {
  for (const std::string& isa : isas()) {
    const int lanes = TORCHALGO_PICK_KERNEL(isa, vec_lanes)();
    alignas(64) float src[32], dst[32];
    for (int i = 0; i < 32; ++i) src[i] = static_cast<float>(i);
    for (int offset = 0; offset < 16; ++offset) {
      TORCHALGO_PICK_KERNEL(isa, load_first)(src + offset, lanes, dst + 15 - offset);
      for (int lane = 0; lane < lanes; ++lane)
        EXPECT_EQ(dst[15 - offset + lane], src[offset + lane]) << isa << " " << offset;
    }
  }
}

TEST(Vec, LoadsInPartReadNothingBeyondTheEnd) {
  const GuardedPage page;
  ASSERT_TRUE(page.is_ready());
  std::fill(page.begin(), page.end(), 7.0F);
  for (const std::string& isa : isas()) {
    const int lanes = TORCHALGO_PICK_KERNEL(isa, vec_lanes)();
    for (int count = 0; count <= lanes; ++count) {
      std::vector<float> dst(lanes, 3.0F);
      TORCHALGO_PICK_KERNEL(isa, load_first)(page.end() - count, count, dst.data());
      for (int lane = 0; lane < lanes; ++lane)
        EXPECT_EQ(dst[lane], lane < count ? 7.0F : 0.0F) << isa << " " << count << " " << lane;
    }
  }
}

TEST(Vec, StoresInPartWriteNothingBeyondTheEnd) {
  const GuardedPage page;
  ASSERT_TRUE(page.is_ready());
  const std::vector<float> src(16, 5.0F);
  for (const std::string& isa : isas()) {
    const int lanes = TORCHALGO_PICK_KERNEL(isa, vec_lanes)();
    for (int count = 0; count <= lanes; ++count) {
      std::fill(page.begin(), page.end(), 7.0F);
      TORCHALGO_PICK_KERNEL(isa, store_first)(src.data(), count, page.end() - count);
      TORCHALGO_PICK_KERNEL(isa, store_first)(src.data(), count, page.begin());
      EXPECT_EQ(std::count(page.begin(), page.end(), 5.0F), 2 * count) << isa;
      EXPECT_EQ(std::count(page.begin(), page.begin() + count, 5.0F), count) << isa;
      EXPECT_EQ(std::count(page.end() - count, page.end(), 5.0F), count) << isa;
    }
  }
}

/// Rounds as the processor's own conversion does, but keeps subnormal numbers.
std::uint16_t rounded(float x) { return c10::BFloat16(x).x; }

TEST(Vec, RoundsToBf16AsTorchDoesAndKeepsEveryNan) {
  for (const std::string& isa : isas()) {
    const int lanes = TORCHALGO_PICK_KERNEL(isa, vec_lanes)();
    const auto widen = TORCHALGO_PICK_KERNEL(isa, widen_first);
    const auto round = TORCHALGO_PICK_KERNEL(isa, round_first);
    std::vector<float> src(lanes), wide(lanes);
    std::vector<std::uint16_t> dst(lanes);
    // Each upper half with lower halves around the ties; also those of infinities and NaNs.
    for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      for (std::uint32_t high = 0; high <= 0xffff; high += static_cast<std::uint32_t>(lanes)) {
        for (int lane = 0; lane < lanes; ++lane)
          src[lane] = std::bit_cast<float>((high + static_cast<std::uint32_t>(lane)) << 16 | low);
        round(src.data(), lanes, dst.data());
        widen(dst.data(), lanes, wide.data());
        for (int lane = 0; lane < lanes; ++lane) {
          ASSERT_EQ(std::isnan(src[lane]), std::isnan(wide[lane])) << isa << " " << src[lane];
          if (std::isnan(src[lane])) continue;
          ASSERT_EQ(dst[lane], rounded(src[lane])) << isa << " " << src[lane];
          ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[lane]), std::uint32_t{dst[lane]} << 16);
        }
      }
    }
  }
}

TEST(Vec, PartsOfBf16TouchNothingBeyondTheEnd) {
  const GuardedPage page;
  ASSERT_TRUE(page.is_ready());
  auto* const end = reinterpret_cast<std::uint16_t*>(page.end());
  const std::vector<float> src(16, 5.0F);
  for (const std::string& isa : isas()) {
    const int lanes = TORCHALGO_PICK_KERNEL(isa, vec_lanes)();
    for (int count = 0; count <= lanes; ++count) {
      std::fill(page.begin(), page.end(), 7.0F);
      TORCHALGO_PICK_KERNEL(isa, round_first)(src.data(), count, end - count);
      EXPECT_EQ(std::count(end - lanes, end, rounded(5.0F)), count) << isa;
      std::vector<float> dst(lanes, 3.0F);
      TORCHALGO_PICK_KERNEL(isa, widen_first)(end - count, count, dst.data());
      for (int lane = 0; lane < lanes; ++lane)
        EXPECT_EQ(dst[lane], lane < count ? 5.0F : 0.0F) << isa << " " << count << " " << lane;
    }
  }
}

}  // namespace
}  // namespace torchalgo
