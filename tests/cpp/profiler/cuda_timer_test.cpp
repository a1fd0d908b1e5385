// SPDX-License-Identifier: BSD-3-Clause
#include "profiler/cuda_timer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "fake_kernel.h"
#include "profiler/caches.h"
#include "profiler/measure.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

// A GPU whose runs last what the test says, and that logs what is enqueued.
struct FakeGpu {
  std::vector<std::string> log;
  double now_ns = 0, start_ns = 0, stop_ns = 0;
  double launch_ns = 5000;  // what the host adds to a run that is launched by itself
  bool is_capturing = false;
  bool can_capture = true;
  int captured = 0;
  std::vector<double> run_ns = {100e3};  // of one run after the other; the last one stays
  std::size_t runs = 0;

  double next_run_ns() { return run_ns[std::min(runs++, run_ns.size() - 1)]; }

  void run() {
    if (is_capturing) {
      ++captured;
      return;
    }
    log.emplace_back("run");
    now_ns += launch_ns + next_run_ns();
  }

  CudaQueue queue() {
    CudaQueue queue;
    queue.l2_bytes = 1 << 12;
    queue.flush_l2 = [this] {
      log.emplace_back("flush");
      now_ns += 1e6;
    };
    queue.record_start = [this] {
      log.emplace_back("start");
      start_ns = now_ns;
    };
    queue.record_stop = [this] {
      log.emplace_back("stop");
      stop_ns = now_ns;
    };
    queue.elapsed_ns = [this] { return stop_ns - start_ns; };
    queue.capture = [this](const std::function<void()>& enqueue) -> std::function<void()> {
      if (!can_capture) throw Error("cannot be captured");
      is_capturing = true;
      captured = 0;
      enqueue();
      is_capturing = false;
      return [this, count = captured] {
        log.emplace_back("launch");
        for (int i = 0; i < count; ++i) now_ns += next_run_ns();
      };
    };
    return queue;
  }

  Runnable work() {
    return {nullptr, [this] { run(); }};
  }
};

TEST(CudaTimer, TimesRunsAsOneGraphWithoutTheHostsShareAndFlushesOutsideTheWindow) {
  // 5 us of each run are the host's while it is launched by itself.
  for (const auto& [run_ns, runs] :
       std::vector<std::pair<double, int>>{{8000, 20}, {95e3, 10}, {400e3, 3}, {2e6, 1}}) {
    FakeGpu gpu;
    gpu.run_ns = {run_ns};
    const auto timer = cuda_timer(gpu.queue());
    const Runnable work = gpu.work();
    const auto stopwatch = timer->warm_up(work, 2);
    EXPECT_EQ(stopwatch->method(), "graph");
    EXPECT_EQ(gpu.captured, runs);
    gpu.log.clear();
    EXPECT_DOUBLE_EQ(stopwatch->sample_ns(), run_ns);
    EXPECT_EQ(gpu.log, (std::vector<std::string>{"flush", "start", "launch", "stop"}));
  }
}

TEST(CudaTimer, TimesByEventsIfTheQueueCapturesNothing) {
  FakeGpu gpu;
  CudaQueue queue = gpu.queue();
  queue.capture = nullptr;
  const auto timer = cuda_timer(queue);
  const Runnable work = gpu.work();
  const auto stopwatch = timer->warm_up(work, 2);
  EXPECT_EQ(stopwatch->method(), "events");
  gpu.log.clear();
  EXPECT_DOUBLE_EQ(stopwatch->sample_ns(), 105e3);
  EXPECT_EQ(gpu.log, (std::vector<std::string>{"flush", "start", "run", "stop"}));
}

TEST(CudaTimer, LaunchesAGraphOnceBeforeItIsTimed) {
  FakeGpu gpu;
  gpu.run_ns = {8000};
  const auto timer = cuda_timer(gpu.queue());
  const Runnable work = gpu.work();
  static_cast<void>(timer->warm_up(work, 2));
  EXPECT_EQ(std::count(gpu.log.begin(), gpu.log.end(), "launch"), 1);
}

TEST(CudaTimer, FallsBackToEventsWhereNothingCanBeCaptured) {
  FakeGpu gpu;
  gpu.run_ns = {8000};
  gpu.can_capture = false;
  const auto timer = cuda_timer(gpu.queue());
  const Runnable work = gpu.work();
  const auto stopwatch = timer->warm_up(work, 2);
  EXPECT_EQ(stopwatch->method(), "events");
  EXPECT_DOUBLE_EQ(stopwatch->sample_ns(), 13000);
}

TEST(CudaTimer, WarmsUpUntilThreeSamplesAgree) {
  FakeGpu gpu;
  gpu.can_capture = false;
  gpu.run_ns = {900e3, 500e3, 300e3, 200e3, 200e3, 200e3};
  const auto timer = cuda_timer(gpu.queue());
  const Runnable work = gpu.work();
  const auto stopwatch = timer->warm_up(work, 1);
  EXPECT_EQ(gpu.runs, 6U);
  EXPECT_DOUBLE_EQ(stopwatch->sample_ns(), 205e3);
}

TEST(CudaTimer, StopsWarmingUpWhatNeverSettles) {
  FakeGpu gpu;
  gpu.can_capture = false;
  gpu.run_ns.clear();
  for (int i = 0; i < 100; ++i) gpu.run_ns.push_back(i % 2 == 0 ? 100e3 : 300e3);
  CudaTimerOptions options;
  options.most_warmups = 11;
  const auto timer = cuda_timer(gpu.queue(), options);
  const Runnable work = gpu.work();
  EXPECT_EQ(timer->warm_up(work, 2)->method(), "events");
  EXPECT_EQ(gpu.runs, 11U);
}

// Rows on CPU tensors, timed as if they ran on the fake GPU.
struct FakeRow {
  FakeGpu gpu;
  std::set<const void*> inputs, weights, results;
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> packed;  // all that were made
  std::size_t most_alive = 0;                                   // of these, in a run

  Algorithm row(std::string_view name, at::MemoryFormat packing = at::MemoryFormat::Contiguous) {
    Algorithm row;
    row.name = name;
    row.prepare = prepare_fake(
        [this](const KernelArgs& args) {
          inputs.insert(args.src[0].data_ptr());
          weights.insert(args.packed[0].weights.data_ptr());
          results.insert(args.dst.data_ptr());
          const auto is_alive = [](const auto& tensor) { return !tensor.expired(); };
          most_alive = std::max<std::size_t>(most_alive, std::ranges::count_if(packed, is_alive));
          gpu.run();
          return args.dst;
        },
        [this, packing](const Weights& weights) {
          const at::Tensor made = weights[0].weights.clone(packing);
          packed.emplace_back(made.getIntrusivePtr());
          return Packed{{made, {}}};
        });
    return row;
  }
};

const char* const kConv = "fwd_f32_n1c8h4w4_k8r1s1_st1x1_pad0x0_dil1x1_g1";     // 768 bytes
const char* const kConv3x3 = "fwd_f32_n1c8h4w4_k8r3s3_st1x1_pad1x1_dil1x1_g1";  // 2816 bytes

TEST(MeasureInterleaved, RotatesAllBuffersThroughTwiceAColdCache) {
  FakeRow fake;
  const Algorithms rows = {fake.row("a.a")};
  MeasureOptions options;
  options.timer = cuda_timer(fake.gpu.queue());
  const Primitive primitive = {"a.a", Layout::kNhwc, Layout::kNhwc};
  const Measurement samples = measure(parse_problem(kConv), primitive, rows, options);
  EXPECT_EQ(samples.failure, "");
  EXPECT_EQ(samples.method, "graph");
  EXPECT_EQ(samples.ns, std::vector<double>(9, 100e3));
  EXPECT_EQ(fake.inputs.size(), 11U);  // 2 * 4096 / 768 + 1
  EXPECT_EQ(fake.weights.size(), 11U);
  EXPECT_EQ(fake.results.size(), 11U);
}

TEST(MeasureInterleaved, SharesInputsAndEqualPackedWeightsBetweenPrimitives) {
  FakeRow fake;
  const Algorithms rows = {fake.row("a.a"), fake.row("b.b")};
  MeasureOptions options;
  options.timer = cuda_timer(fake.gpu.queue());
  const Problem problem = parse_problem(kConv);
  const auto results = measure_interleaved({{problem, {"a.a", Layout::kNchw, Layout::kNchw}},
                                            {problem, {"b.b", Layout::kNchw, Layout::kNchw}}},
                                           rows, options);
  EXPECT_EQ(results[1].failure, "");
  EXPECT_EQ(fake.inputs.size(), 11U);
  EXPECT_EQ(fake.weights.size(), 11U);
}

TEST(MeasureInterleaved, HoldsTheWeightsOfManyPrimitivesOncePerPacking) {
  FakeRow fake;
  const std::vector<std::string> names = {"a.a", "a.b", "a.c", "a.d", "a.e", "a.f"};
  Algorithms rows;
  std::vector<Task> tasks;
  for (const std::string& name : names) {
    rows.push_back(fake.row(name, rows.size() % 2 == 0 ? at::MemoryFormat::Contiguous
                                                       : at::MemoryFormat::ChannelsLast));
    // The sums of a network differ in their epilogues: the weights are the same.
    const char* const epilogue = rows.size() < 4 ? "" : "+relu";
    tasks.push_back(
        {parse_problem(std::string(kConv3x3) + epilogue), {name, Layout::kNchw, Layout::kNchw}});
  }
  MeasureOptions options;
  options.timer = cuda_timer(fake.gpu.queue());
  for (const Measurement& result : measure_interleaved(tasks, rows, options)) {
    EXPECT_EQ(result.failure, "");
    EXPECT_EQ(result.ns.size(), 9U);
  }
  EXPECT_EQ(fake.weights.size(), 2 * 3U);  // 2 * 4096 / 2816 + 1 sets of each packing
}

TEST(MeasureInterleaved, KeepsNoWeightsThatARunHasPacked) {
  FakeRow fake;
  const Algorithms rows = {fake.row("a.a")};
  MeasureOptions options;
  options.timer = cuda_timer(fake.gpu.queue());
  options.cold_bytes = kChangedWeights;
  const Primitive primitive = {"a.a", Layout::kNchw, Layout::kNchw};
  EXPECT_EQ(measure(parse_problem(kConv3x3), primitive, rows, options).failure, "");
  EXPECT_GT(fake.packed.size(), 3U);
  EXPECT_EQ(fake.most_alive, 1U);
}

TEST(MeasureInterleaved, TimesTheFirstTaskTwiceForAControl) {
  FakeRow fake;
  const Algorithms rows = {fake.row("a.a")};
  MeasureOptions options;
  options.timer = cuda_timer(fake.gpu.queue());
  options.control = true;
  const Problem problem = parse_problem(kConv);
  const auto results =
      measure_interleaved({{problem, {"a.a", Layout::kNchw, Layout::kNchw}}}, rows, options);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_DOUBLE_EQ(results[0].control_ratio, 1);
  options.control = false;
  EXPECT_EQ(measure(problem, {"a.a", Layout::kNchw, Layout::kNchw}, rows, options).control_ratio,
            0);
}

TEST(MeasureInterleaved, StaysInsideTheTimersScope) {
  FakeRow fake;
  const Algorithms rows = {fake.row("a.a")};
  MeasureOptions options;
  CudaQueue queue = fake.gpu.queue();
  int entered = 0;
  bool left = false;
  queue.enter = [&] {
    ++entered;
    return std::shared_ptr<void>(&left, [](void* it) { *static_cast<bool*>(it) = true; });
  };
  options.timer = cuda_timer(queue);
  static_cast<void>(
      measure(parse_problem(kConv), {"a.a", Layout::kNchw, Layout::kNchw}, rows, options));
  EXPECT_EQ(entered, 1);
  EXPECT_TRUE(left);
}

TEST(MeasureInterleaved, RefusesADeviceThatIsOnlyDescribed) {
  MeasureOptions options;
  options.device = {.kind = DeviceKind::kCuda, .name = "h100", .isa = "sm_90"};
  EXPECT_THROW(static_cast<void>(measure(parse_problem(kConv), {}, {}, options)), Error);
}

// CUDA's graph functions, with a status for each and a log.
struct FakeRuntime {
  std::vector<std::string> log;
  std::string failing;
  int errors_cleared = 0;

  int status(const char* name) {
    log.emplace_back(name);
    return failing == name ? 900 : 0;
  }

  CudaRuntime runtime() {
    CudaRuntime runtime;
    runtime.get_error_string = [](int) { return "operation not permitted"; };
    runtime.get_last_error = [this] { return ++errors_cleared, 0; };
    runtime.begin_capture = [this](void*, int mode) {
      EXPECT_EQ(mode, 2);
      return status("begin");
    };
    runtime.end_capture = [this](void*, void** graph) {
      const int result = status("end");
      if (result == 0) *graph = this;
      return result;
    };
    runtime.instantiate = [this](void** exec, void* graph, unsigned long long) {
      EXPECT_EQ(graph, this);
      *exec = this;
      return status("instantiate");
    };
    runtime.launch = [this](void* exec, void*) {
      EXPECT_EQ(exec, this);
      return status("launch");
    };
    runtime.destroy_exec = [this](void*) { return status("destroy_exec"); };
    runtime.destroy_graph = [this](void*) { return status("destroy_graph"); };
    return runtime;
  }

  CudaLibrary library() {
    CudaLibrary library;
    library.open_pool = [this](int device, void*) -> std::uint64_t {
      EXPECT_EQ(device, 3);
      log.emplace_back("open_pool");
      return failing == "open_pool" ? 0 : 5;
    };
    library.close_pool = [this](int device, std::uint64_t pool) {
      EXPECT_TRUE(device == 3 && pool == 5);
      log.emplace_back("close_pool");
    };
    library.free_pool = [this](int device, std::uint64_t pool) {
      EXPECT_TRUE(device == 3 && pool == 5);
      log.emplace_back("free_pool");
    };
    return library;
  }
};

using Log = std::vector<std::string>;

TEST(CaptureGraph, RecordsAndLaunchesAndFreesAll) {
  FakeRuntime fake;
  const CudaRuntime runtime = fake.runtime();
  const CudaLibrary library = fake.library();
  {
    const auto launch =
        capture_graph(runtime, library, 3, nullptr, [&] { fake.log.emplace_back("enqueue"); });
    launch();
    launch();
  }
  EXPECT_EQ(fake.log, (Log{"open_pool", "begin", "enqueue", "end", "close_pool", "instantiate",
                           "destroy_graph", "launch", "launch", "destroy_exec", "free_pool"}));
  EXPECT_EQ(fake.errors_cleared, 0);
}

TEST(CaptureGraph, EndsTheCaptureWhenSomethingInItThrows) {
  FakeRuntime fake;
  const CudaRuntime runtime = fake.runtime();
  const CudaLibrary library = fake.library();
  EXPECT_THROW(
      static_cast<void>(capture_graph(runtime, library, 3, nullptr,
                                      [] { throw std::runtime_error("not while capturing"); })),
      std::runtime_error);
  EXPECT_EQ(fake.log,
            (Log{"open_pool", "begin", "end", "destroy_graph", "close_pool", "free_pool"}));
  EXPECT_EQ(fake.errors_cleared, 1);
}

TEST(CaptureGraph, FailsWithTheFunctionsNameAtEachStep) {
  for (const auto& [step, function] : std::vector<std::pair<std::string, std::string>>{
           {"open_pool", "allocator"},
           {"begin", "cudaStreamBeginCapture"},
           {"end", "cudaStreamEndCapture"},
           {"instantiate", "cudaGraphInstantiateWithFlags"}}) {
    FakeRuntime fake;
    fake.failing = step;
    const CudaRuntime runtime = fake.runtime();
    const CudaLibrary library = fake.library();
    try {
      static_cast<void>(capture_graph(runtime, library, 3, nullptr, [] {}));
      ADD_FAILURE() << step;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(function), std::string::npos) << error.what();
    }
    EXPECT_EQ(std::count(fake.log.begin(), fake.log.end(), "destroy_graph"),
              step == "instantiate" ? 1 : 0);
    const int opened = step == "open_pool" ? 0 : 1;
    EXPECT_EQ(std::count(fake.log.begin(), fake.log.end(), "close_pool"), opened);
    EXPECT_EQ(std::count(fake.log.begin(), fake.log.end(), "free_pool"), opened);
  }
}

}  // namespace
}  // namespace torchalgo
