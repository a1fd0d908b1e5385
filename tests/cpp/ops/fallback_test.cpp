// SPDX-License-Identifier: BSD-3-Clause
#include "ops/fallback.h"

#include <gtest/gtest.h>

#include <tuple>

#include "aten_algo/list.h"
#include "base/error.h"
#include "fake_kernel.h"

namespace torchalgo {
namespace {

constexpr const char* kConv = "fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu";

Algorithm row_of(std::string_view name, std::vector<Primitive> primitives) {
  Algorithm row;
  row.name = name;
  row.offer = [primitives](const Problem&, const Device&) -> Offer {
    if (primitives.empty()) return {{}, "needs another machine"};
    return {primitives, {}};
  };
  row.prepare = prepare_fake(nullptr);
  return row;
}

Algorithms with_aten(Algorithms rows) {
  rows.insert(rows.begin(), aten_algorithms().begin(), aten_algorithms().end());
  return rows;
}

const Primitive kRequest = {"cpu.planned.a", Layout::kNChw16c, Layout::kNhwc};

TEST(Resolve, TakesThePlannedPrimitiveWithItsWorkspace) {
  const Algorithms rows = {
      row_of("cpu.planned", {{"cpu.planned.b", kRequest.src, kRequest.dst, 1},
                             {"cpu.planned.a", kRequest.src, kRequest.dst, 9}})};
  const Resolution resolution = resolve(kRequest, parse_problem(kConv), rows, Device());
  EXPECT_EQ(resolution.step, Step::kPlanned);
  EXPECT_EQ(resolution.kernel->primitive.name, "cpu.planned.a");
  EXPECT_EQ(resolution.kernel->primitive.workspace_bytes, 9);
  EXPECT_EQ(resolution.algorithm, &rows[0]);
  EXPECT_EQ(resolution.reason, "");
}

TEST(Resolve, PrefersAnotherVariantOfTheRowToOtherRowsOfTheSameLayouts) {
  const Algorithms rows = {row_of("cpu.other", {{"cpu.other", kRequest.src, kRequest.dst}}),
                           row_of("cpu.planned", {{"cpu.planned.a", kRequest.src, kRequest.src},
                                                  {"cpu.planned.b", kRequest.src, kRequest.dst}})};
  const Resolution resolution = resolve(kRequest, parse_problem(kConv), rows, Device());
  EXPECT_EQ(resolution.step, Step::kSameLayouts);
  EXPECT_EQ(resolution.kernel->primitive.name, "cpu.planned.b");
  EXPECT_NE(resolution.reason.find("cpu.planned.a"), std::string::npos) << resolution.reason;
}

TEST(Resolve, TakesWhatTheRowOffersOnlyByName) {
  Algorithm own = row_of("cpu.planned", {});
  own.offer_all = row_of("", {{"cpu.planned.a", kRequest.src, kRequest.dst},
                              {"cpu.planned.b", kRequest.src, kRequest.dst}})
                      .offer;
  const Algorithms rows = {row_of("cpu.other", {{"cpu.other", kRequest.src, kRequest.dst}}), own};
  for (const auto& [planned, step, runs] :
       {std::tuple("cpu.planned.a", Step::kPlanned, "cpu.planned.a"),
        std::tuple("cpu.planned.gone", Step::kSameLayouts, "cpu.planned.a")}) {
    const Resolution found =
        resolve({planned, kRequest.src, kRequest.dst}, parse_problem(kConv), rows, Device());
    EXPECT_EQ(found.step, step);
    EXPECT_EQ(found.name(), runs);
  }
}

TEST(Resolve, TakesARowOfTheSameLayoutsWhenThePlannedOneRefuses) {
  const Algorithms rows = with_aten(
      {row_of("cpu.planned", {}), row_of("cpu.far", {{"cpu.far", Layout::kNchw, kRequest.dst}}),
       row_of("cpu.other", {{"cpu.other", kRequest.src, kRequest.dst}})});
  const Resolution resolution = resolve(kRequest, parse_problem(kConv), rows, Device());
  EXPECT_EQ(resolution.step, Step::kSameLayouts);
  EXPECT_EQ(resolution.kernel->primitive.name, "cpu.other");
  EXPECT_NE(resolution.reason.find("needs another machine"), std::string::npos);
}

TEST(Resolve, EndsAtAtenInNchwWithTheRestOfTheEpilogue) {
  const Resolution resolution =
      resolve(kRequest, parse_problem(kConv), aten_algorithms(), Device());
  EXPECT_EQ(resolution.step, Step::kAten);
  EXPECT_EQ(resolution.kernel->primitive,
            (Primitive{"aten.conv", Layout::kNchw, Layout::kNchw, 0}));
  EXPECT_EQ(epilogue_of(resolution.kernel->problem), Epilogue{PostOp::kBias});
  EXPECT_EQ(resolution.rest, (Epilogue{PostOp::kAdd, PostOp::kRelu}));
  EXPECT_EQ(resolution.reason, "this build has no cpu.planned.a");
}

TEST(Resolve, FindsARowOfAtenForEveryKindOfProblem) {
  for (const char* text :
       {"maxpool_f32_n1c8h8w8_r2s2_st2x2_pad0x0_dil1x1", "relu_f64_n1c8h8w8",
        "add_f32_n1c8h8w8+relu", "scaleshift_bf16_n1c8h8w8+relu", "concat_f32_n1c8x8h8w8",
        "nearest_f32_n1c8h8w8_x2x2", "linear_f16_n1c8_k4+bias+relu"}) {
    EXPECT_EQ(resolve(kRequest, parse_problem(text), aten_algorithms(), Device()).step, Step::kAten)
        << text;
  }
}

TEST(Resolve, CopiesATransformThatNoRowOffers) {
  const Resolution resolution = resolve(
      kRequest, parse_problem("transform_f32_n1c8h8w8_nChw16c_nhwc"), aten_algorithms(), Device());
  EXPECT_EQ(resolution.step, Step::kAten);
  EXPECT_EQ(resolution.algorithm, nullptr);
}

TEST(Resolve, ThrowsWhenNothingRunsTheProblem) {
  const Problem problem = parse_problem("fwd_f32_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1");
  EXPECT_THROW(static_cast<void>(resolve(kRequest, problem, {}, Device())), Error);
}

}  // namespace
}  // namespace torchalgo
