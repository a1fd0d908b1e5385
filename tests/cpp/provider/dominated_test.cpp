// SPDX-License-Identifier: BSD-3-Clause
#include "provider/dominated.h"

#include <gtest/gtest.h>

namespace torchalgo {
namespace {

struct Row {
  const char* name;
  std::optional<std::int64_t> hidden_bytes = 0;
  std::optional<int> proposal = std::nullopt;
  bool has_tensor_core = false;
};

std::vector<std::string> kept(const std::vector<Row>& rows, const CandidateOptions& options = {}) {
  ProblemOffers offers;
  for (const Row& row : rows) {
    offers.primitives.push_back({row.name, Layout::kNhwc, Layout::kNhwc});
    Traits traits{.hidden_bytes = row.hidden_bytes, .proposal = row.proposal};
    traits.is_enumerated = std::string_view(row.name).starts_with("cudnn9.");
    if (std::string_view(row.name).starts_with("cudnn_legacy.")) traits.repeats = "the engines";
    if (row.has_tensor_core) traits.numerics = {"winograd", "tensor_core"};
    offers.traits.push_back(std::move(traits));
  }
  const std::size_t count = offers.primitives.size();
  const ProblemOffers result = without_dominated(std::move(offers), "problem", options);
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

TEST(WithoutDominated, KeepsEnginesThatChangeALayoutOnlyWhereAllDo) {
  EXPECT_EQ(kept({{"cudnn9.c.e1", 8}, {"cudnn9.c.e2", 0}}), (Names{"cudnn9.c.e2"}));
  EXPECT_EQ(kept({{"cudnn9.c.e1", 8}, {"cudnn9.c.e2", 4}, {"aten.conv", 0}}),
            (Names{"cudnn9.c.e1", "cudnn9.c.e2", "aten.conv"}));
}

TEST(WithoutDominated, KeepsEnginesThatMayChangeALayoutOnlyIfCudnnProposesThem) {
  const std::vector<Row> rows = {{"cudnn9.c.e1", 0, 0},
                                 {"cudnn9.c.e1{A=1}", 0, 1},
                                 {"cudnn9.c.e1{A=2}", 0, 2},
                                 {"cudnn9.c.e2", std::nullopt},
                                 {"cudnn9.c.e3", std::nullopt, 7},
                                 {"cudnn9.c.e4", std::nullopt, 8}};
  EXPECT_EQ(kept(rows),
            (Names{"cudnn9.c.e1", "cudnn9.c.e1{A=1}", "cudnn9.c.e1{A=2}", "cudnn9.c.e3"}));
  EXPECT_EQ(kept(rows, {.all_knobs = true}).size(), rows.size());
  EXPECT_EQ(kept({{"cudnn9.c.e2", std::nullopt}}), (Names{"cudnn9.c.e2"}));
}

TEST(WithoutDominated, KeepsTheKnobsThatCudnnProposesFirst) {
  const std::vector<Row> rows = {
      {"cudnn9.c.e1"},           {"cudnn9.c.e1{A=1}", 0, 0}, {"cudnn9.c.e1{A=2}", 0, 9},
      {"cudnn9.c.e1{A=3}"},      {"cudnn9.c.e2{A=1}", 0, 3}, {"cudnn9.c.e2{A=2}", 0, 4},
      {"cudnn9.c.e2{A=3}", 0, 5}};
  EXPECT_EQ(kept(rows), (Names{"cudnn9.c.e1", "cudnn9.c.e1{A=1}", "cudnn9.c.e2{A=1}",
                               "cudnn9.c.e2{A=2}", "cudnn9.c.e2{A=3}"}));
  EXPECT_EQ(kept(rows, {.all_knobs = true}).size(), rows.size());
  EXPECT_EQ(kept(rows, {.named = {"cudnn9.c.e1{A=3}"}}).size(), 6U);
}

TEST(WithoutDominated, DropsNothingForAPrimitiveThatIsDroppedItself) {
  EXPECT_EQ(kept({{"cudnn9.c.e0", 8}, {"cudnn9.c.e1{A=1}", 0, {}, true}}), (Names{"cudnn9.c.e0"}));
}

TEST(WithoutDominated, KeepsEnginesWithoutTensorCoresOnlyIfTheyAreNeededOrProposed) {
  EXPECT_EQ(kept({{"cudnn9.c.e0"},
                  {"cudnn9.c.e1", 0, {}, true},
                  {"cudnn9.c.e2{A=1}", 0, 2},
                  {"cudnn9.c.e3", std::nullopt},
                  {"aten.conv"}}),
            (Names{"cudnn9.c.e1", "cudnn9.c.e2{A=1}", "aten.conv"}));
  EXPECT_EQ(kept({{"cudnn9.c.e0"}, {"cudnn9.c.e1", 9, {}, true}}), (Names{"cudnn9.c.e0"}));
}

TEST(WithoutDominated, KeepsLegacyAlgorithmsOnlyWithoutEnginesOrByName) {
  EXPECT_EQ(kept({{"cudnn_legacy.fwd.1", std::nullopt}, {"cudnn9.c.e1"}}), (Names{"cudnn9.c.e1"}));
  EXPECT_EQ(kept({{"cudnn_legacy.fwd.1", std::nullopt}, {"aten.conv"}}).size(), 2U);
  EXPECT_EQ(kept({{"cudnn_legacy.fwd.1", std::nullopt},
                  {"cudnn_legacy.fwd.6", std::nullopt},
                  {"cudnn9.c.e1"}},
                 {.named = {"cudnn_legacy.fwd.1"}}),
            (Names{"cudnn_legacy.fwd.1", "cudnn9.c.e1"}));
}

TEST(WithoutDominated, KeepsALegacyTransformThatNoEngineHas) {
  ProblemOffers offers;
  for (const char* const name : {"cudnn_legacy.fwd.4", "cudnn_legacy.fwd.6", "cudnn9.c.e6"}) {
    offers.primitives.push_back({name, Layout::kNchw, Layout::kNchw});
  }
  offers.traits = {{.numerics = {"fft"}, .repeats = "the engines"},
                   {.numerics = {"winograd"}, .repeats = "the engines"},
                   {.numerics = {"winograd_4x4"}, .is_enumerated = true}};
  const ProblemOffers result = without_dominated(std::move(offers), "problem");
  ASSERT_EQ(result.primitives.size(), 2U);
  EXPECT_EQ(result.primitives[0].name, "cudnn_legacy.fwd.4");
  EXPECT_EQ(result.primitives[1].name, "cudnn9.c.e6");
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
