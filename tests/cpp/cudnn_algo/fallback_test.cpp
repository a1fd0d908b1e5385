// SPDX-License-Identifier: BSD-3-Clause
// The engines that run instead of one that cuDNN refuses, in a plan and for a choice.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "aten_algo/list.h"
#include "cudnn_algo/fake_device.h"
#include "cudnn_algo/fake_engines.h"
#include "ops/fallback.h"
#include "ops/resolve_choice.h"
#include "profiler/check.h"

namespace torchalgo::cudnn {
namespace {

using fake::fake_device;
using fake::FakeRows;

constexpr Layout kNchw = Layout::kNchw, kNhwc = Layout::kNhwc;
const std::string kSizes = "_n2c8h12w12_k16r3s3_st1x1_pad1x1_dil1x1_g1";

// All algorithms of a GPU, with the imitation of cuDNN.
struct Gpu {
  explicit Gpu(const fake::Options& options = {}) : fake(options), all(aten_algorithms()) {
    all.insert(all.end(), fake.rows.begin(), fake.rows.end());
  }
  [[nodiscard]] Resolution planned(const std::string& name, const std::string& problem,
                                   Layout layout = kNhwc, int index = 0) const {
    return resolve({name, layout, layout, 0}, parse_problem(problem), all, fake_device(90, index));
  }
  FakeRows fake;
  Algorithms all;
};

// Engines that this cuDNN refuses on this GPU: one of older GPUs, and one that a newer cuDNN no
// longer has. It also refuses a value of a knob.
const std::vector<std::string> kRefused = {"e6", "e99", "e99.krsc{TILE_SIZE=4}", "e2{TILE_SIZE=5}"};

TEST(Fallback, RunsTheEngineOfTheHeuristicsForTheSameFusedPattern) {
  const Gpu gpu;
  for (const auto& [pattern, epilogue] :
       std::vector<std::pair<std::string, std::string>>{{"conv", ""},
                                                        {"conv_bias", "+bias"},
                                                        {"conv_bias_relu", "+bias+relu"},
                                                        {"conv_bias_add", "+bias+add"},
                                                        {"conv_bias_add_relu", "+bias+add+relu"}}) {
    const std::string problem = "fwd_f16" + kSizes + epilogue;
    for (const std::string& engine : kRefused) {
      for (const Layout layout : {kNchw, kNhwc}) {
        for (const int index : {0, -1}) {  // asked with a handle, or with a description
          const std::string name = "cudnn9." + pattern + "." + engine;
          const Resolution found = gpu.planned(name, problem, layout, index);
          EXPECT_EQ(found.step, Step::kHeuristic) << name;
          EXPECT_TRUE(found.name().starts_with("cudnn9." + pattern + ".e2.krsc{")) << found.name();
          EXPECT_EQ(found.kernel->primitive.src, layout);
          EXPECT_EQ(found.kernel->problem, parse_problem(problem));
          EXPECT_TRUE(found.rest.empty());
          EXPECT_NE(found.reason.find(name + " refuses"), std::string::npos) << found.reason;
        }
      }
    }
  }
}

TEST(Fallback, RunsAnEngineThatIsRight) {
  const Gpu gpu;
  const std::string problem = "fwd_f16" + kSizes + "+bias+add+relu";
  const Resolution found = gpu.planned("cudnn9.conv_bias_add_relu.e99", problem);
  const auto results =
      check_primitives(gpu.all, parse_problem(problem), {found.kernel->primitive}, 2e-3);
  EXPECT_EQ(results.at(0).failure, "");
}

TEST(Fallback, PacksWeightsAsTheEngineReadsThemInsteadOfLettingItCopyThemInEachRun) {
  const Gpu gpu;
  for (const std::string engine : {"e99", "e99.krsc"}) {  // engine 2 works in nhwc and krsc
    const Resolution found =
        gpu.planned("cudnn9.conv_bias_relu." + engine, "fwd_f16" + kSizes + "+bias+relu");
    EXPECT_EQ(weights_layout(found.kernel->primitive), kNhwc);
    EXPECT_EQ(found.kernel->primitive.workspace_bytes, 0);
  }
}

TEST(Fallback, RunsNoEngineWithOtherBitsInEachRun) {
  const Gpu gpu;
  // The heuristics put engine 4 first, which adds up with atomics.
  const std::string problem = "bwd_data_f32" + kSizes;
  EXPECT_EQ(gpu.planned("cudnn9.conv_bwd_data.e4", problem).step, Step::kPlanned);
  EXPECT_EQ(without_krsc(gpu.planned("cudnn9.conv_bwd_data.e6", problem).name()),
            "cudnn9.conv_bwd_data.e1");
}

TEST(Fallback, FusesTheBeginningOfAnEpilogueThatCudnnHasNotAsAWhole) {
  const Gpu gpu;
  const std::string problem = "fwd_f16" + kSizes + "+bias+add+silu";
  const Resolution found = gpu.planned("cudnn9.conv_bias_add_silu.e2", problem);
  EXPECT_EQ(found.step, Step::kHeuristic);
  EXPECT_TRUE(found.name().starts_with("cudnn9.conv_bias_add.e2.krsc{")) << found.name();
  EXPECT_EQ(found.rest, Epilogue{PostOp::kSilu});
}

TEST(Fallback, OfALegacyNumberIsAnEngine) {
  const Gpu gpu({.has_legacy = false});
  const Resolution found = gpu.planned("cudnn_legacy.fwd.6", "fwd_f16" + kSizes + "+bias");
  EXPECT_EQ(found.step, Step::kHeuristic);
  EXPECT_TRUE(found.name().starts_with("cudnn9.conv_bias.e2.krsc{")) << found.name();
}

TEST(Fallback, OfAChoiceIsTheSameEngineAsInAPlan) {
  const Gpu gpu;
  for (const std::string epilogue : {"", "+bias"}) {
    const std::string text = "fwd_f16" + kSizes + epilogue;
    ConvRequest request;
    request.name = "cudnn9.conv.e99";
    request.src = request.weights = request.dst = kNhwc;
    const Resolution found =
        resolve_choice(request, std::get<ConvProblem>(parse_problem(text)), gpu.all, fake_device());
    EXPECT_EQ(found.step, Step::kHeuristic);
    EXPECT_EQ(found.name(), gpu.planned("cudnn9.conv.e99", text).name());
    EXPECT_TRUE(found.rest.empty());
  }
}

}  // namespace
}  // namespace torchalgo::cudnn
