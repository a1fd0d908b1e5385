// SPDX-License-Identifier: BSD-3-Clause
#include "ops/resolve_choice.h"

#include <gtest/gtest.h>

#include "aten_algo/list.h"
#include "base/error.h"
#include "fake_kernel.h"

namespace torchalgo {
namespace {

constexpr Layout kNchw = Layout::kNchw;
constexpr Layout kNhwc = Layout::kNhwc;
constexpr Layout kBlocked = Layout::kNChw16c;

ConvProblem problem_of(const char* text) { return std::get<ConvProblem>(parse_problem(text)); }

const ConvProblem kConv = problem_of("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1");
const ConvProblem kConvBias = problem_of("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias");

Device gpu() {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.index = 0;
  return device;
}

// A row that lists `primitives`, for problems without an epilogue only if `is_plain`.
Algorithm row_of(std::string_view name, std::vector<Primitive> primitives, bool is_plain = false,
                 Traits traits = {}) {
  Algorithm row;
  row.name = name;
  row.runs_on_cuda = true;
  row.offer = [=](const Problem& problem, const Device&) -> Offer {
    if (is_plain && !epilogue_of(problem).empty()) return {{}, "fuses nothing"};
    if (primitives.empty()) return {{}, "needs another machine"};
    return {primitives, {}, std::vector<Traits>(primitives.size(), traits)};
  };
  row.prepare = prepare_fake(nullptr);
  return row;
}

// A row that is asked one primitive at a time, and has exactly `names` in `layouts`.
Algorithm library_row(std::string_view name, std::vector<std::string> names,
                      std::vector<std::pair<Layout, Layout>> layouts, Traits traits = {},
                      std::optional<DType> only = {}) {
  Algorithm row = row_of(name, {});
  const Direction direction =
      name.ends_with("bwd_data") ? Direction::kBackwardData : Direction::kForward;
  row.offer_one = [=](const Problem& problem, const Device&, const Primitive& asked) -> Offer {
    if (std::get<ConvProblem>(problem).direction != direction) return {{}, "has another direction"};
    if (only && dtype_of(problem) != *only) return {{}, "computes in another type"};
    for (const std::string& known : names) {
      for (const auto& [src, dst] : layouts) {
        if (asked.src != src || asked.dst != dst) continue;
        if (asked.name == known) return {{{known, src, dst, 7}}, {}, {traits}};
        if (asked.name == row.name) return {{{names[0], src, dst, 7}}, {}, {traits}};
      }
    }
    return {{}, "has no " + asked.name};
  };
  return row;
}

Algorithms with_aten(Algorithms rows) {
  rows.insert(rows.begin(), aten_algorithms().begin(), aten_algorithms().end());
  return rows;
}

ConvRequest request_of(std::string name, Layout src = kNchw, Layout dst = kNchw,
                       Layout weights = kNchw) {
  ConvRequest request;
  request.name = std::move(name);
  request.src = src;
  request.dst = dst;
  request.weights = weights;
  return request;
}

TEST(ResolveChoice, TakesTheNameInTheTensorsLayouts) {
  const Algorithms rows =
      with_aten({row_of("cpu.a", {{"cpu.a", kBlocked, kBlocked, 1}, {"cpu.a", kNhwc, kNhwc, 2}})});
  const Resolution resolution =
      resolve_choice(request_of("cpu.a", kNhwc, kNhwc), kConv, rows, Device());
  EXPECT_EQ(resolution.step, Step::kPlanned);
  EXPECT_EQ(resolution.kernel->primitive, (Primitive{"cpu.a", kNhwc, kNhwc, 2}));
  EXPECT_EQ(resolution.algorithm, &rows.back());
  EXPECT_EQ(resolution.reason, "");
}

TEST(ResolveChoice, ChangesTheFewestLayoutsAroundTheName) {
  const Algorithms rows = with_aten({row_of(
      "cpu.a",
      {{"cpu.a", kBlocked, kBlocked}, {"cpu.a", kNhwc, kNhwc}, {"cpu.a", kBlocked, kNchw}})});
  const Resolution resolution = resolve_choice(request_of("cpu.a"), kConv, rows, Device());
  EXPECT_EQ(resolution.step, Step::kOtherLayouts);
  EXPECT_EQ(resolution.kernel->primitive, (Primitive{"cpu.a", kBlocked, kNchw, 0}));
}

TEST(ResolveChoice, TakesAVariantOfAnAlgorithmsNameButNotOfAPrimitives) {
  const Algorithms rows =
      with_aten({row_of("cpu.a", {{"cpu.a.t14", kNchw, kNchw}}),
                 row_of("cpu.b", {{"cpu.b", kBlocked, kBlocked}, {"cpu.b.t7", kNchw, kNchw}})});
  EXPECT_EQ(resolve_choice(request_of("cpu.a"), kConv, rows, Device()).name(), "cpu.a.t14");
  EXPECT_EQ(resolve_choice(request_of("cpu.b"), kConv, rows, Device()).name(), "cpu.b");
  EXPECT_EQ(resolve_choice(request_of("cpu.b.t7"), kConv, rows, Device()).name(), "cpu.b.t7");
}

TEST(ResolveChoice, TakesTheVariantForTheWeightsLayout) {
  const Algorithms rows = with_aten({library_row(
      "cudnn9.conv", {"cudnn9.conv.e2{A=1}", "cudnn9.conv.e2.krsc{A=1}"}, {{kNchw, kNchw}})});
  const auto name = [&](Layout weights) {
    return resolve_choice(request_of("cudnn9.conv.e2{A=1}", kNchw, kNchw, weights), kConv, rows,
                          gpu())
        .name();
  };
  EXPECT_EQ(name(kNchw), "cudnn9.conv.e2{A=1}");
  EXPECT_EQ(name(kNhwc), "cudnn9.conv.e2.krsc{A=1}");
}

TEST(ResolveChoice, LeavesTheEpilogueThatTheRowDoesNotFuse) {
  const Algorithms rows = with_aten({row_of("cpu.a", {{"cpu.a", kNchw, kNchw}}, true)});
  const Resolution resolution = resolve_choice(request_of("cpu.a"), kConvBias, rows, Device());
  EXPECT_EQ(resolution.step, Step::kPlanned);
  EXPECT_EQ(resolution.kernel->problem, Problem(kConv));
  EXPECT_EQ(resolution.rest, Epilogue{PostOp::kBias});
}

TEST(ResolveChoice, WalksTheChainOfALibraryStepByStep) {
  const std::string asked = "cudnn9.conv.e2{A=1}";
  const auto step_with = [&](std::vector<std::string> names,
                             std::vector<std::pair<Layout, Layout>> layouts) {
    const Algorithms rows = with_aten({library_row("cudnn9.conv", std::move(names), layouts)});
    const Resolution resolution =
        resolve_choice(request_of(asked, kNhwc, kNhwc), kConv, rows, gpu());
    return std::pair(resolution.step, resolution.kernel->primitive.name);
  };
  EXPECT_EQ(step_with({asked, "cudnn9.conv.e2"}, {{kNhwc, kNhwc}}),
            std::pair(Step::kPlanned, asked));
  EXPECT_EQ(step_with({asked, "cudnn9.conv.e2"}, {{kNchw, kNchw}}),
            std::pair(Step::kOtherLayouts, asked));
  EXPECT_EQ(step_with({"cudnn9.conv.e7", "cudnn9.conv.e2"}, {{kNhwc, kNhwc}}),
            std::pair(Step::kDefaultKnobs, std::string("cudnn9.conv.e2")));
  EXPECT_EQ(step_with({"cudnn9.conv.e7"}, {{kNhwc, kNhwc}}),
            std::pair(Step::kHeuristic, std::string("cudnn9.conv.e7")));
  EXPECT_EQ(step_with({}, {}), std::pair(Step::kAten, std::string("aten.conv")));
}

TEST(ResolveChoice, AsksTheHeuristicsOfTheDirectionForALegacyNumber) {
  const Algorithms rows = with_aten(
      {row_of("cudnn_legacy.bwd_data", {}),
       library_row("cudnn9.conv", {"cudnn9.conv.e1"}, {{kNchw, kNchw}}),
       library_row("cudnn9.conv_bwd_data", {"cudnn9.conv_bwd_data.e5"}, {{kNchw, kNchw}})});
  ConvProblem problem = kConv;
  problem.direction = Direction::kBackwardData;
  const Resolution resolution =
      resolve_choice(request_of("cudnn_legacy.bwd_data.6"), problem, rows, gpu());
  EXPECT_EQ(resolution.step, Step::kHeuristic);
  EXPECT_EQ(resolution.kernel->primitive.name, "cudnn9.conv_bwd_data.e5");
  EXPECT_NE(resolution.reason.find("cudnn_legacy.bwd_data.6 refuses"), std::string::npos)
      << resolution.reason;
}

TEST(ResolveChoice, EndsAtAtenInTheTensorsLayouts) {
  const Resolution resolution =
      resolve_choice(request_of("cpu.none", kNhwc, kNhwc), kConvBias, aten_algorithms(), Device());
  EXPECT_EQ(resolution.step, Step::kAten);
  EXPECT_EQ(resolution.kernel->primitive, (Primitive{"aten.conv", kNhwc, kNhwc, 0}));
  EXPECT_EQ(resolution.reason, "this build has no cpu.none");
  EXPECT_TRUE(resolution.rest.empty());
}

TEST(ResolveChoice, ServesEveryDirectionByAten) {
  ConvProblem problem = kConv;
  for (const Direction direction :
       {Direction::kForward, Direction::kBackwardData, Direction::kBackwardFilter}) {
    problem.direction = direction;
    EXPECT_EQ(resolve_choice(request_of("aten.conv"), problem, aten_algorithms(), Device()).step,
              Step::kPlanned)
        << to_string(problem);
  }
}

TEST(ResolveChoice, ThrowsWhenNothingRunsTheProblem) {
  EXPECT_THROW(static_cast<void>(resolve_choice(request_of("cpu.a"), kConv, {}, Device())), Error);
}

class Conflict : public testing::Test {
 protected:
  Resolution resolve(ConflictPolicy policy, const ConvProblem& problem = kConv) const {
    ConvRequest request = request_of("cudnn9.conv.e2");
    request.needs_determinism = true;
    request.conflict = policy;
    return resolve_choice(request, problem, rows, gpu());
  }
  Algorithms rows = with_aten({library_row("cudnn9.conv", {"cudnn9.conv.e2"}, {{kNchw, kNchw}},
                                           {.is_deterministic = false})});
};

TEST_F(Conflict, OfDeterminismIsAnErrorAFallbackOrHonoured) {
  try {
    static_cast<void>(resolve(ConflictPolicy::kError));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("cudnn9.conv.e2 is not deterministic"), std::string::npos) << what;
  }
  const Resolution fallback = resolve(ConflictPolicy::kFallback);
  EXPECT_EQ(fallback.step, Step::kAten);
  EXPECT_NE(fallback.reason.find("not deterministic"), std::string::npos) << fallback.reason;
  EXPECT_EQ(resolve(ConflictPolicy::kHonour).step, Step::kPlanned);
}

TEST_F(Conflict, OfDeterminismDoesNotArriveByAFallback) {
  rows = with_aten({library_row("cudnn9.conv", {"cudnn9.conv.e7"}, {{kNchw, kNchw}},
                                {.is_deterministic = false})});
  for (const auto policy :
       {ConflictPolicy::kError, ConflictPolicy::kFallback, ConflictPolicy::kHonour}) {
    EXPECT_EQ(resolve(policy).step, Step::kAten);
  }
}

TEST_F(Conflict, OfAnF32ProblemWithATf32PrimitiveIsLikewise) {
  rows = with_aten(
      {library_row("cudnn9.conv", {"cudnn9.conv.e2"}, {{kNchw, kNchw}}, {}, DType::kTf32)});
  EXPECT_THROW(static_cast<void>(resolve(ConflictPolicy::kError)), Error);
  EXPECT_EQ(resolve(ConflictPolicy::kFallback).step, Step::kAten);
  const Resolution honoured = resolve(ConflictPolicy::kHonour);
  EXPECT_EQ(honoured.step, Step::kPlanned);
  EXPECT_EQ(dtype_of(honoured.kernel->problem), DType::kTf32);
}

}  // namespace
}  // namespace torchalgo
