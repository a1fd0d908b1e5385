// SPDX-License-Identifier: BSD-3-Clause
#include "provider/dominated.h"

#include <gtest/gtest.h>

namespace torchalgo {
namespace {

struct Row {
  const char* name;
  std::optional<std::int64_t> hidden_bytes;
};

std::vector<std::string> kept(const std::vector<Row>& rows) {
  ProblemOffers offers;
  for (const Row& row : rows) {
    offers.primitives.push_back({row.name, Layout::kNhwc, Layout::kNhwc});
    offers.traits.push_back({.hidden_bytes = row.hidden_bytes});
  }
  const std::size_t count = offers.primitives.size();
  const ProblemOffers result = without_dominated(std::move(offers), "problem");
  EXPECT_EQ(result.primitives.size() + result.refusals.size(), count);
  EXPECT_EQ(result.primitives.size(), result.traits.size());
  std::vector<std::string> names;
  for (const Primitive& primitive : result.primitives) names.push_back(primitive.name);
  return names;
}

using Names = std::vector<std::string>;

TEST(WithoutDominated, KeepsTheWeightsLayoutThatCopiesLeast) {
  EXPECT_EQ(kept({{"c.e1", 100}, {"c.e1.krsc", 0}}), (Names{"c.e1.krsc"}));
  EXPECT_EQ(kept({{"c.e1", 0}, {"c.e1.krsc", 0}}), (Names{"c.e1", "c.e1.krsc"}));
  EXPECT_EQ(kept({{"c.e1", std::nullopt}, {"c.e1.krsc", std::nullopt}}),
            (Names{"c.e1", "c.e1.krsc"}));
  EXPECT_EQ(kept({{"c.e1{A=1}", 0}, {"c.e1.krsc", 9}}), (Names{"c.e1{A=1}", "c.e1.krsc"}));
}

TEST(WithoutDominated, KeepsOtherKnobsInNativeLayoutsOnly) {
  EXPECT_EQ(kept({{"c.e1", 8}, {"c.e1{A=1}", 8}, {"c.e2", 0}, {"c.e2{A=1}", 0}}),
            (Names{"c.e1", "c.e2", "c.e2{A=1}"}));
}

TEST(WithoutRuntimeCompiled, SaysWhy) {
  ProblemOffers offers;
  offers.primitives = {{"c.e1"}, {"c.e71"}};
  offers.traits = {{}, {.is_runtime_compiled = true}};
  const ProblemOffers result = without_runtime_compiled(std::move(offers), "problem");
  ASSERT_EQ(result.primitives.size(), 1U);
  EXPECT_EQ(result.primitives[0].name, "c.e1");
  ASSERT_EQ(result.refusals.size(), 1U);
  EXPECT_EQ(result.refusals[0].primitive, "c.e71");
  EXPECT_NE(result.refusals[0].reason.find("compiles"), std::string::npos);
}

}  // namespace
}  // namespace torchalgo
