// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/measure.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "base/error.h"
#include "fake_kernel.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

const char* const kConv = "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1";

// A clock that a run moves on by what the row costs.
struct FakeMachine {
  std::int64_t now = 0, drift = 0;
  std::vector<std::string> order;

  Algorithm row(std::string_view name, std::int64_t cost_ns) {
    Algorithm row;
    row.name = name;
    row.prepare = prepare_fake(
        [this, name, cost_ns](const KernelArgs& args) {
          now += cost_ns + drift * static_cast<std::int64_t>(order.size());
          order.emplace_back(name);
          return args.dst;
        },
        [](const Weights& weights) {
          return Packed{{weights[0].weights.contiguous(), {}}};
        });
    return row;
  }
  MeasureOptions options() {
    MeasureOptions options;
    options.timer = host_timer([this] { return now; });
    return options;
  }
};

Primitive nchw(const char* name) { return {name, Layout::kNchw, Layout::kNchw}; }

std::vector<Task> tasks(std::initializer_list<const char*> names) {
  std::vector<Task> tasks;
  for (const char* name : names) tasks.push_back({parse_problem(kConv), nchw(name)});
  return tasks;
}

TEST(MeasureInterleaved, TakesTheSamplesInTurn) {
  FakeMachine machine;
  const Algorithms rows = {machine.row("a.a", 100), machine.row("b.b", 300)};
  MeasureOptions options = machine.options();
  options.warmup = 1;
  options.rounds = 4;
  const auto results = measure_interleaved(tasks({"a.a", "b.b"}), rows, options);
  EXPECT_EQ(results[0].ns, (std::vector<double>{100, 100, 100, 100}));
  EXPECT_EQ(results[1].ns, (std::vector<double>{300, 300, 300, 300}));
  const std::vector<std::string> expected = {"a.a", "b.b", "a.a", "b.b", "a.a",
                                             "b.b", "a.a", "b.b", "a.a", "b.b"};
  EXPECT_EQ(machine.order, expected);
}

TEST(MeasureInterleaved, StopsAtTheBudgetButNotBeforeThreeRounds) {
  FakeMachine machine;
  const Algorithms rows = {machine.row("a.a", 1'000'000'000)};
  MeasureOptions options = machine.options();
  options.rounds = 50;
  options.budget_s = 0.5;
  EXPECT_EQ(measure(parse_problem(kConv), nchw("a.a"), rows, options).ns.size(), 3u);
  options.budget_s = 7.5;
  EXPECT_EQ(measure(parse_problem(kConv), nchw("a.a"), rows, options).ns.size(), 8u);
}

TEST(MeasureInterleaved, KeepsGoingWhenOneCandidateFails) {
  FakeMachine machine;
  Algorithm broken = machine.row("b.b", 1);
  broken.prepare = prepare_fake(
      [](const KernelArgs&) -> at::Tensor { throw std::runtime_error("out of luck"); });
  const Algorithms rows = {machine.row("a.a", 100), broken};
  const auto results = measure_interleaved(tasks({"b.b", "a.a"}), rows, machine.options());
  EXPECT_EQ(results[0].failure, "out of luck");
  EXPECT_TRUE(results[0].ns.empty());
  EXPECT_EQ(results[1].failure, "");
  EXPECT_EQ(results[1].ns.size(), 9u);
}

struct FakeCalm : Calm {
  explicit FakeCalm(std::vector<bool> samples) : samples(std::move(samples)) {}
  void begin() override {}
  bool was_alone() override { return turn < samples.size() ? samples[turn++] : true; }
  bool is_steady() override { return true; }
  std::vector<bool> samples;
  std::size_t turn = 0;
};

TEST(MeasureRace, TheLoserIsSampledTwiceAndTheWinnerUntilItIsKnown) {
  FakeMachine machine;
  const Algorithms rows = {machine.row("a.a", 100), machine.row("b.b", 300)};
  MeasureOptions options = machine.options();
  options.warmup = 1;
  options.race = true;
  options.calm = std::make_shared<FakeCalm>(std::vector<bool>{});
  const auto results = measure_interleaved(tasks({"a.a", "b.b"}), rows, options);
  EXPECT_EQ(results[0].ns, (std::vector<double>{100, 100, 100, 100, 100}));
  EXPECT_EQ(results[1].ns, (std::vector<double>{300, 300}));
}

TEST(MeasureRace, ADisturbedSampleIsTakenAgain) {
  FakeMachine machine;
  const Algorithms rows = {machine.row("a.a", 100)};
  MeasureOptions options = machine.options();
  options.race = true;
  options.rounds = 5;
  options.calm = std::make_shared<FakeCalm>(std::vector<bool>{true, false, false});
  Measurement samples = measure_interleaved(tasks({"a.a"}), rows, options)[0];
  // Five samples of either kind are known well; what they are is told.
  EXPECT_EQ(samples.ns.size(), 5U);
  EXPECT_EQ(samples.disturbed, 0);
  machine.drift = 20;  // each run takes longer than the one before: never known, 15 rounds
  options.calm = std::make_shared<FakeCalm>(std::vector<bool>{true, false, false});
  samples = measure_interleaved(tasks({"a.a"}), rows, options)[0];
  EXPECT_EQ(samples.ns.size(), 13U);
  EXPECT_EQ(samples.disturbed, 2);
}

TEST(MeasureRace, AFailingTaskIsOutAndTheOthersRace) {
  FakeMachine machine;
  Algorithm broken = machine.row("b.b", 1);
  broken.prepare = prepare_fake(
      [](const KernelArgs&) -> at::Tensor { throw std::runtime_error("out of luck"); });
  const Algorithms rows = {machine.row("a.a", 100), broken};
  MeasureOptions options = machine.options();
  options.race = true;
  const auto results = measure_interleaved(tasks({"b.b", "a.a"}), rows, options);
  EXPECT_EQ(results[0].failure, "out of luck");
  EXPECT_GE(results[1].ns.size(), 5U);
}

TEST(Measure, SaysWhichNameIsUnknown) {
  const Measurement samples = measure(parse_problem(kConv), nchw("x.y"), {}, {});
  EXPECT_NE(samples.failure.find("'x.y'"), std::string::npos);
}

}  // namespace
}  // namespace torchalgo
