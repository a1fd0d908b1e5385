// SPDX-License-Identifier: BSD-3-Clause
#include "runner/weight_watch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

namespace torchalgo {
namespace {

std::string changed(const WeightWatch& watch) {
  const std::optional<ModelChange> change = watch.first_change();
  if (!change) return "";
  EXPECT_TRUE(change->is_weight);
  const std::size_t begin = change->text.find('\'') + 1;
  return change->text.substr(begin, change->text.rfind('\'') - begin);
}

TEST(WeightWatch, SeesOpsInPlaceOtherMemoryAndWritesToTheMiddleElement) {
  const at::Tensor a = at::ones({3, 4}), b = at::ones({5});
  const WeightWatch before({a, b}, {"a", "b"});
  EXPECT_EQ(changed(before), "");
  b.add_(0);
  EXPECT_EQ(changed(before), "b");
  const WeightWatch again({a, b}, {"a", "b"});
  a.variable_data()[1][2] = 7;
  EXPECT_EQ(changed(again), "a");
  const WeightWatch last({a, b}, {"a", "b"});
  b.set_data(b.clone());
  EXPECT_EQ(changed(last), "b");
}

TEST(WeightWatch, DoesNotSeeAWriteThatLeavesTheMiddleElement) {
  const at::Tensor a = at::ones({3, 4});
  const WeightWatch watch({a}, {"a"});
  a.variable_data()[0][0] = 7;
  EXPECT_EQ(changed(watch), "");
}

TEST(WeightWatch, ComparesBits) {
  const at::Tensor nan = at::full({3}, std::numeric_limits<double>::quiet_NaN());
  const at::Tensor zero = at::full({1}, 0.0F);
  const WeightWatch watch({nan, zero}, {"nan", "zero"});
  EXPECT_EQ(changed(watch), "");
  zero.variable_data()[0] = -0.0F;
  EXPECT_EQ(changed(watch), "zero");
}

TEST(WeightWatch, TakesTensorsOfAnyKind) {
  const at::Tensor number = at::ones({}), expanded = at::ones({1}).expand({4, 4});
  const at::Tensor empty = at::empty({0, 3}), complex = at::ones({3}, at::kComplexDouble);
  const at::Tensor meta = at::empty({3}, at::kMeta);
  const at::Tensor sparse = at::ones({3}).to_sparse(), none;
  const WeightWatch watch({number, expanded, empty, complex, meta, sparse, none},
                          {"number", "expanded", "empty", "complex", "meta", "sparse", "none"});
  EXPECT_EQ(changed(watch), "");
  complex.variable_data()[1] = 2;
  EXPECT_EQ(changed(watch), "complex");
}

}  // namespace
}  // namespace torchalgo
