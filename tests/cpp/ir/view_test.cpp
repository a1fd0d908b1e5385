// SPDX-License-Identifier: BSD-3-Clause
#include "ir/view.h"

#include <gtest/gtest.h>

#include "ir/cost_table.h"

namespace torchalgo {
namespace {

// The address of one element by the definition of each layout in ir/layout.h.
std::int64_t address(Layout layout, std::int64_t c_count, std::int64_t p_count, std::int64_t n,
                     std::int64_t c, std::int64_t p) {
  if (layout == Layout::kNchw) return (n * c_count + c) * p_count + p;
  if (untyped(layout) == Layout::kNhwc) return (n * p_count + p) * c_count + c;
  const std::int64_t block = block_size(layout), blocks = (c_count + block - 1) / block;
  return ((n * blocks + c / block) * p_count + p) * block + c % block;
}

bool has_equal_addresses(std::int64_t n, std::int64_t c, std::int64_t p, Layout a, Layout b) {
  for (std::int64_t i = 0; i < n * c * p; ++i) {
    const std::int64_t in = i / (c * p), ic = i / p % c, ip = i % p;
    if (address(a, c, p, in, ic, ip) != address(b, c, p, in, ic, ip)) return false;
  }
  return element_count(a, n, c, p) == element_count(b, n, c, p);
}

TEST(LiesAlike, EqualsComparingTheAddressOfEveryElement) {
  int alike = 0;
  for (const Layout a : kAllLayouts) {
    for (const Layout b : kAllLayouts) {
      for (const std::int64_t n : {1, 2, 3}) {
        for (const std::int64_t c : {1, 2, 8, 12, 16, 24, 32, 48}) {
          for (const std::int64_t p : {1, 2, 6, 16}) {
            const bool is_alike = lies_alike(n, c, p, a, b);
            // A pad lane is memory that only a writer makes zero, so a padded layout is its own
            // only relabel; that needs no transform.
            const bool is_same_type = is_typed(a) == is_typed(b);
            const bool is_padded = c % block_size(a) != 0 || c % block_size(b) != 0;
            EXPECT_EQ(is_alike, is_same_type && !is_padded && has_equal_addresses(n, c, p, a, b))
                << to_string(a) << " " << to_string(b) << " n" << n << "c" << c << "p" << p;
            alike += is_alike && a != b;
          }
        }
      }
    }
  }
  EXPECT_GT(alike, 50);
}

TEST(FindCost, PricesAViewAtNothingAndKeepsNoEntry) {
  const CostTable table;
  const CostKey key = {"transform_f32_n1c16h1w1_nchw_nhwc", std::string(kViewRelabel),
                       Layout::kNchw, Layout::kNhwc};
  const auto cost = find_cost(table, key);
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->ticks, 0);
  EXPECT_EQ(cost->source, CostSource::kConstruction);
  EXPECT_FALSE(find_cost(table, {key.problem, "viewer.relabel", key.src, key.dst}));
}

}  // namespace
}  // namespace torchalgo
