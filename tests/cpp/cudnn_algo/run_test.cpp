// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/run.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cudnn_algo/fake_device.h"
#include "cudnn_algo/fake_engines.h"
#include "cudnn_algo/graph.h"
#include "cudnn_algo/repeated.h"
#include "profiler/check.h"
#include "provider/kernel.h"
#include "provider/memory.h"

namespace torchalgo::cudnn {
namespace {

using fake::fake_device;
using fake::FakeRows;
using fake::Repeated;

double limit_of(DType dtype) {
  return dtype == DType::kF64    ? 1e-12
         : dtype == DType::kF16  ? 2e-3
         : dtype == DType::kBf16 ? 2e-2
                                 : 1e-6;
}

// Checks every primitive that the rows of this prefix offer; returns their layout triples.
std::set<Layouts> check_all(const FakeRows& fake, const std::string& prefix,
                            const std::string& text) {
  const Problem problem = parse_problem(text);
  std::set<Layouts> seen;
  for (const Algorithm& row : fake.rows) {
    if (!row.name.starts_with(prefix)) continue;
    const Offer offer = row.offer(problem, fake_device());
    const auto results =
        check_primitives(fake.rows, problem, offer.primitives, limit_of(dtype_of(problem)));
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].failure, "") << to_string(offer.primitives[i]) << " " << text;
      seen.insert(layouts_of(offer.primitives[i]));
    }
  }
  return seen;
}

TEST(RunEngine, EqualsTheReferenceInAllLayoutsAndDirections) {
  FakeRows fake;
  for (const std::string direction : {"fwd", "bwd_data", "bwd_filter"}) {
    for (const std::string dtype : {"f32", "tf32", "f16", "bf16"}) {
      for (const std::string sizes :
           {"n2c4h6w5_k6r3s3_st1x1_pad1x1_dil1x1_g1", "n1c4h9w8_k8r3s2_st2x1_pad2x1_dil2x1_g2",
            "n2c3h1w9_k2r1s3_st1x2_pad0x1_dil1x1_g1"}) {
        const std::string text = direction + "_" + dtype + "_" + sizes;
        EXPECT_EQ(check_all(fake, "cudnn9.", text).size(), 8U) << text;
      }
    }
  }
  EXPECT_GT(fake.cudnn.stats().executed, 0);
}

TEST(RunEngine, RunsConvolutionsWithOtherZerosAfterTheImageThanBeforeIt) {
  FakeRows fake;
  const std::string text = "fwd_f32_n2c4h9w8_k6r3s2_st2x1_pad0x1x1x0_dil1x1_g2";
  EXPECT_EQ(check_all(fake, "cudnn9.", text).size(), 8U);
  EXPECT_TRUE(check_all(fake, "cudnn_legacy.", text).empty());
}

TEST(RunEngine, RunsThreeDimensionalConvolutions) {
  FakeRows fake;
  for (const std::string direction : {"fwd", "bwd_data", "bwd_filter"}) {
    const std::string text = direction + "_f32_n1c2d4h5w4_k4t2r3s3_st1x2x1_pad1x1x0_dil1x1x1_g2";
    EXPECT_EQ(check_all(fake, "cudnn9.", text).size(), 8U) << text;
  }
}

TEST(RunEngine, AddsBiasResidualAndActivationByPattern) {
  FakeRows fake;
  for (const std::string epilogue : {"+bias", "+bias+relu", "+bias+add", "+bias+add+relu", "+relu",
                                     "+bias+silu", "+bias+gelu"}) {
    for (const std::string dtype : {"f32", "f16"}) {
      const std::string text =
          "fwd_" + dtype + "_n2c4h6w5_k6r3s3_st1x1_pad1x1_dil1x1_g1" + epilogue;
      EXPECT_EQ(check_all(fake, "cudnn9.", text).size(), 8U) << text;
    }
  }
}

constexpr const char* kTf32 = "fwd_tf32_n2c4h6w5_k6r3s3_st1x1_pad1x1_dil1x1_g1";

TEST(RunEngine, BuildsAPlanOnceAndThenOnlyExecutes) {
  std::vector<std::string> calls;
  FakeRows fake;
  const auto api = fake::intercept(fake.cudnn.api(), [&](const fake::CallRecord& record) {
    calls.push_back(record.function);
    return std::optional<Status>();
  });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  const ExecutionStats before = execution_stats();
  EXPECT_TRUE(conv.is_right(conv.run()));
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 1);
  calls.clear();
  EXPECT_TRUE(conv.is_right(conv.run()));
  EXPECT_EQ(calls, (std::vector<std::string>{"execute"}));
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 1);
}

TEST(RunEngine, EqualLayersShareAPlanAndKeepTheirOwnVariantPacks) {
  std::vector<std::string> calls;
  FakeRows fake;
  const auto api = fake::intercept(fake.cudnn.api(), [&](const fake::CallRecord& record) {
    calls.push_back(record.function);
    return std::optional<Status>();
  });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  Repeated a(fake, kTf32, "cudnn9.conv.e2"), b(fake, kTf32, "cudnn9.conv.e2");
  const ExecutionStats before = execution_stats();
  a.run();
  b.run();
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 1);
  calls.clear();
  EXPECT_TRUE(a.is_right(a.run()));
  EXPECT_TRUE(b.is_right(b.run()));
  EXPECT_EQ(calls, (std::vector<std::string>{"execute", "execute"}));
}

// Prints what a run costs the host, without cuDNN's own part: docs/gpu-status.md says how much.
TEST(RunEngine, CallsCudnnOnceInARunAfterTheFirst) {
  std::int64_t calls = 0;
  bool computes = true;
  FakeRows fake;
  const auto api = fake::intercept(
      fake.cudnn.api(), [&](const fake::CallRecord& record) -> std::optional<Status> {
        ++calls;
        return record.function == "execute" && !computes ? std::optional(kSuccess) : std::nullopt;
      });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  conv.run();
  calls = 0;
  computes = false;
  constexpr int kRuns = 20000;
  const std::int64_t start = steady_now_ns();
  for (int i = 0; i < kRuns; ++i) conv.run();
  std::printf("host time of a run: %.2f us\n",
              static_cast<double>(steady_now_ns() - start) / 1e3 / kRuns);
  EXPECT_EQ(calls, kRuns);
}

TEST(RunEngine, SetsTheStreamOfTheHandleOnlyWhenItChanges) {
  std::vector<std::string> calls;
  FakeRows fake;
  const auto api = fake::intercept(fake.cudnn.api(), [&](const fake::CallRecord& record) {
    if (record.function == "set_stream" || record.function == "create_handle") {
      calls.push_back(record.function);
    }
    return std::optional<Status>();
  });
  std::uintptr_t stream = 0;  // the default stream
  Runtime runtime = fake.cudnn.runtime();
  runtime.stream = [&stream] { return reinterpret_cast<Stream>(stream); };
  fake.rows = cudnn_algorithms(api, runtime);
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  conv.run();
  conv.run();
  EXPECT_EQ(calls, (std::vector<std::string>{"create_handle", "set_stream"}));
  stream = 0x20;
  conv.run();
  conv.run();
  EXPECT_EQ(calls, (std::vector<std::string>{"create_handle", "set_stream", "set_stream"}));
}

TEST(RunEngine, GivesTheHandleOfAnEndedThreadToTheNextOne) {
  int handles = 0;
  FakeRows fake;
  const auto api = fake::intercept(fake.cudnn.api(), [&](const fake::CallRecord& record) {
    if (record.function == "create_handle") ++handles;
    return std::optional<Status>();
  });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");  // this thread keeps its own handle
  handles = 0;
  const ExecutionStats before = execution_stats();
  for (int i = 0; i < 3; ++i) {
    std::thread([&] { EXPECT_TRUE(conv.is_right(conv.run())); }).join();
  }
  EXPECT_EQ(handles, 1);
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 1);
  EXPECT_EQ(fake.cudnn.stats().shared_between_threads, 0);
}

TEST(RunEngine, KeepsAPlanThatAGraphHasCapturedUntilTheProcessEnds) {
  FakeRows fake;
  const std::int64_t before = fake.cudnn.stats().alive;
  for (const bool is_captured : {false, true}) {
    {
      Repeated conv(fake, kTf32, "cudnn9.conv.e2");
      conv.run();
      fake.cudnn.set_capturing(is_captured);
      conv.run();
      fake.cudnn.set_capturing(false);
    }
    fake.plans().clear();
    EXPECT_EQ(fake.cudnn.stats().alive > before, is_captured);
  }
}

TEST(RunEngine, RefusesTensorsOf2To31Elements) {
  FakeRows fake;
  const Problem problem = parse_problem("fwd_f16_n64c64h1024w512_k8r1s1_st1x1_pad0x0_dil1x1_g1");
  for (const std::string name : {"cudnn9.conv.e2", "cudnn_legacy.fwd.1"}) {
    const Offer offer =
        offer_exact(fake.row(name), problem, fake_device(), name, Layout::kNchw, Layout::kNchw);
    EXPECT_NE(offer.refusal.find("less than 2^31 elements"), std::string::npos) << offer.refusal;
  }
}

TEST(RunEngine, MakesANewVariantPackForOtherMemory) {
  FakeRows fake;
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  conv.run();
  const at::Tensor other = empty_result(conv.problem_, Layout::kNchw);
  EXPECT_TRUE(conv.is_right(conv.run_on(conv.src_[0].clone(), other)));
  EXPECT_TRUE(conv.is_right(conv.run()));
}

TEST(RunEngine, RunsKnobsOfTheName) {
  FakeRows fake;
  Repeated split(fake, kTf32, "cudnn9.conv.e2{SPLIT_K=3,TILE_SIZE=2}");
  Repeated plain(fake, kTf32, "cudnn9.conv.e2");
  EXPECT_GT(split.primitive_.workspace_bytes, plain.primitive_.workspace_bytes);
  EXPECT_TRUE(split.is_right(split.run()));
}

TEST(RunEngine, OfferOneNamesKnobsThatDoNotExist) {
  FakeRows fake;
  const Problem problem = parse_problem(kTf32);
  for (const std::string name :
       {"cudnn9.conv.e2{SPLIT_K=9}", "cudnn9.conv.e2{TILE_SIZE=1}", "cudnn9.conv.e0{SPLIT_K=2}",
        "cudnn9.conv.e99", "cudnn9.conv.e2{TILE_SIZE=2,SPLIT_K=1}", "cudnn9.conv.e2{NONSENSE=1}"}) {
    const Offer offer =
        offer_exact(fake.row(name), problem, fake_device(), name, Layout::kNchw, Layout::kNchw);
    EXPECT_TRUE(offer.primitives.empty()) << name;
    EXPECT_NE(offer.refusal, "") << name;
  }
}

TEST(RunEngine, RepacksMisalignedViewsAndCountsThem) {
  FakeRows fake;
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  const auto sizes = conv.src_[0].sizes().vec();
  const at::Tensor buffer = at::empty({conv.src_[0].numel() + 1});
  const at::Tensor view = buffer.narrow(0, 1, conv.src_[0].numel()).view(sizes);
  view.copy_(conv.src_[0]);
  const at::Tensor dst_buffer = at::empty({conv.dst_.numel() + 1});
  const at::Tensor dst_view = dst_buffer.narrow(0, 1, conv.dst_.numel()).view(conv.dst_.sizes());
  const std::int64_t before = execution_stats().tensors_repacked;
  conv.run();
  EXPECT_EQ(execution_stats().tensors_repacked, before);
  const at::Tensor result = conv.run_on(view, dst_view);
  EXPECT_TRUE(conv.is_right(result));
  EXPECT_EQ(result.data_ptr(), dst_view.data_ptr());
  EXPECT_EQ(execution_stats().tensors_repacked, before + 2);
}

TEST(RunEngine, NeverBuildsWhileAGraphIsCaptured) {
  FakeRows fake;
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  const std::int64_t plans = fake.cudnn.stats().plans;
  fake.cudnn.set_capturing(true);
  const std::string error = conv.error_of_run();
  EXPECT_NE(error.find("once with the same shapes before capturing"), std::string::npos) << error;
  EXPECT_NE(error.find(kTf32), std::string::npos) << error;
  EXPECT_EQ(fake.cudnn.stats().plans, plans);
  fake.cudnn.set_capturing(false);
  conv.run();
  fake.cudnn.set_capturing(true);
  EXPECT_EQ(conv.error_of_run(), "");
}

TEST(RunEngine, RefusesToCaptureAPlanThatNeverRan) {
  bool fails = true;
  FakeRows fake;
  const auto api = fake::intercept(fake.cudnn.api(),
                                   [&](const fake::CallRecord& record) -> std::optional<Status> {
                                     if (record.function == "execute" && fails)
                                       return kExecutionFailed;
                                     return std::nullopt;
                                   });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  EXPECT_NE(conv.error_of_run(), "");
  fails = false;
  fake.cudnn.set_capturing(true);
  EXPECT_NE(conv.error_of_run().find("built but never run"), std::string::npos);
}

TEST(RunEngine, ErrorsNameFunctionStatusPrimitiveAndProblem) {
  FakeRows fake;
  const auto api = fake::intercept(fake.cudnn.api(),
                                   [&](const fake::CallRecord& record) -> std::optional<Status> {
                                     if (record.function == "execute") return kExecutionFailed;
                                     return std::nullopt;
                                   });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  Repeated conv(fake, kTf32, "cudnn9.conv.e2.krsc", Layout::kNhwc, Layout::kNchw);
  const std::string error = conv.error_of_run();
  for (const std::string part : {"cudnnBackendExecute", "CUDNN_STATUS_EXECUTION_FAILED (5000)",
                                 "cudnn9.conv.e2.krsc nhwc->nchw", kTf32, "cuDNN 9.19.0"}) {
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
  }
}

TEST(RunEngine, ErrorsQuoteTheLibrarysLastError) {
  FakeRows fake;
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  conv.primitive_.name = "cudnn9.conv.e2{SPLIT_K=9}";
  conv.prepare();
  const std::string error = conv.error_of_run();
  EXPECT_NE(error.find("a knob has no such value"), std::string::npos) << error;
  EXPECT_NE(error.find("(3000)"), std::string::npos) << error;
}

TEST(RunEngine, GivesAPlanTheWorkspaceThatItNeedsAndCountsIt) {
  FakeRows fake;
  Repeated conv(fake, kTf32, "cudnn9.conv.e2");
  ASSERT_GT(conv.primitive_.workspace_bytes, 0);
  conv.primitive_.workspace_bytes = 0;
  conv.prepare();
  const std::int64_t before = execution_stats().workspaces_grown;
  EXPECT_TRUE(conv.is_right(conv.run()));
  EXPECT_EQ(execution_stats().workspaces_grown, before + 1);
}

TEST(RunEngine, ForgetsTheLongestUnusedPlanWhenTheCacheIsFull) {
  FakeRows fake;
  fake.plans().set_limit(2);
  Repeated a(fake, kTf32, "cudnn9.conv.e0"), b(fake, kTf32, "cudnn9.conv.e1"),
      c(fake, kTf32, "cudnn9.conv.e2");
  const auto run = [](Repeated& conv) {
    conv.prepare();  // which forgets what it had
    conv.run();
  };
  run(a);
  run(b);
  run(a);
  const ExecutionStats before = execution_stats();
  run(c);  // b goes
  EXPECT_EQ(execution_stats().plans_evicted, before.plans_evicted + 1);
  run(a);
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 1);
  run(b);
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 2);
  EXPECT_EQ(fake.plans().size(), 2U);
}

TEST(RunEngine, KeepsNoMorePlansThanTheCacheAlsoForConvolutionsInUse) {
  FakeRows fake;
  fake.plans().set_limit(3);
  std::vector<std::unique_ptr<Repeated>> convs;
  for (const char* name :
       {"cudnn9.conv.e0", "cudnn9.conv.e1", "cudnn9.conv.e2", "cudnn_legacy.fwd.1"}) {
    convs.push_back(std::make_unique<Repeated>(fake, kTf32, name));
  }
  for (const int conv : {0, 1, 2}) convs[conv]->run();
  convs[0]->run();  // without a question to the cache
  const std::int64_t alive = fake.cudnn.stats().alive;
  const ExecutionStats before = execution_stats();
  convs[3]->run();  // the plan of convs[1] goes
  EXPECT_EQ(execution_stats().plans_evicted, before.plans_evicted + 1);
  for (const int conv : {0, 2, 3}) convs[conv]->run();
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 1);
  EXPECT_TRUE(convs[1]->is_right(convs[1]->run()));
  EXPECT_EQ(execution_stats().plans_built, before.plans_built + 2);
  fake.plans().clear();
  EXPECT_LT(fake.cudnn.stats().alive, alive) << "a convolution holds no plan of its own";
}

TEST(RunEngine, ThreadsShareNothingAndLeakNothing) {
  constexpr int kThreads = 8, kTurns = 50;
  FakeRows fake;
  std::vector<std::unique_ptr<Repeated>> convs;
  for (int i = 0; i < kThreads; ++i) {
    convs.push_back(std::make_unique<Repeated>(fake, kTf32, "cudnn9.conv.e2"));
  }
  const fake::Stats before = fake.cudnn.stats();
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (const auto& conv : convs) {
    threads.emplace_back([&wrong, &conv] {
      for (int turn = 0; turn < kTurns; ++turn) wrong += conv->is_right(conv->run()) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const fake::Stats in_use = fake.cudnn.stats();
  convs.clear();
  const fake::Stats after = fake.cudnn.stats();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(after.executed, before.executed + kThreads * kTurns);
  EXPECT_LE(after.plans, before.plans + kThreads) << "one plan per handle";
  EXPECT_EQ(after.shared_between_threads, before.shared_between_threads);
  EXPECT_EQ(after.double_destroys, 0);
  EXPECT_EQ(after.uses_after_destroy, 0);
  EXPECT_EQ(after.crashes, 0);
  EXPECT_LT(after.alive, in_use.alive) << "the rest of a state goes with its convolution";
}

}  // namespace
}  // namespace torchalgo::cudnn
