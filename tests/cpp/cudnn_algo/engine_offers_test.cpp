// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "cudnn_algo/device_properties.h"
#include "cudnn_algo/enumerate.h"
#include "cudnn_algo/fake_device.h"
#include "cudnn_algo/fake_engines.h"
#include "cudnn_algo/graph.h"

namespace torchalgo::cudnn {
namespace {

using fake::fake_device;
using fake::FakeRows;

const std::string kSizes = "_n2c8h12w12_k16r3s3_st1x1_pad1x1_dil1x1_g1";
// Numbers of the fake's engines.
const std::string kGeneric = "e0", kPrecomputed = "e1", kTensorCores = "e2", kCompiled = "e3",
                  kAtomics = "e4", kDownConverting = "e5", kWinograd = "e6";

struct Asked {
  Problem problem;
  Offer offer;

  [[nodiscard]] std::vector<std::size_t> of_engine(const std::string& engine) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < offer.primitives.size(); ++i) {
      const std::string& name = offer.primitives[i].name;
      if (name.find("." + engine) != std::string::npos) found.push_back(i);
    }
    return found;
  }
  [[nodiscard]] std::string reason_of(const std::string& primitive) const {
    for (const RefusedVariant& refused : offer.refused) {
      if (refused.primitive == primitive) return refused.reason;
    }
    return "";
  }
};

Asked ask(const FakeRows& fake, const std::string& row, const std::string& problem,
          const Device& device = fake_device()) {
  const Problem parsed = parse_problem(problem);
  return {parsed, fake.row(row + ".e0").offer(parsed, device)};
}

TEST(EngineOffers, OffersEachEngineInAllLayoutsItTakes) {
  const FakeRows fake;
  const Asked asked = ask(fake, "cudnn9.conv", "fwd_f16" + kSizes);
  std::set<std::tuple<Layout, Layout, Layout>> layouts;
  for (const std::size_t i : asked.of_engine(kGeneric)) {
    const Primitive& primitive = asked.offer.primitives[i];
    layouts.insert({primitive.src, weights_layout(primitive), primitive.dst});
  }
  EXPECT_EQ(layouts.size(), 8U);
  EXPECT_EQ(asked.of_engine(kGeneric).size(), 8U);
  for (const std::size_t i : asked.of_engine(kCompiled)) {
    EXPECT_EQ(to_string(asked.offer.primitives[i]), "cudnn9.conv.e3.krsc nhwc->nhwc");
    EXPECT_TRUE(asked.offer.traits[i].is_runtime_compiled);
  }
  EXPECT_EQ(asked.of_engine(kCompiled).size(), 1U);
}

TEST(EngineOffers, OffersEachPrimitiveOnceAndAgainByName) {
  const FakeRows fake;
  for (const auto& [row, problem] : std::map<std::string, std::string>{
           {"cudnn9.conv", "fwd_f16" + kSizes},
           {"cudnn9.conv_bias_add", "fwd_bf16" + kSizes + "+bias+add"},
           {"cudnn9.conv_bias_add_relu", "fwd_tf32" + kSizes + "+bias+add+relu"},
           {"cudnn9.conv_bwd_data", "bwd_data_bf16" + kSizes},
           {"cudnn9.conv_bwd_filter", "bwd_filter_f32" + kSizes}}) {
    const Asked asked = ask(fake, row, problem);
    const FakeRows fresh;  // has no enumeration to look into
    std::set<std::string> names;
    ASSERT_FALSE(asked.offer.primitives.empty()) << row << ": " << asked.offer.refusal;
    for (const Primitive& primitive : asked.offer.primitives) {
      EXPECT_TRUE(names.insert(to_string(primitive)).second) << to_string(primitive);
      for (const FakeRows* rows : {&fake, &fresh}) {
        const Offer again =
            rows->row(primitive.name).offer_one(asked.problem, fake_device(), primitive);
        ASSERT_EQ(again.primitives.size(), 1U) << to_string(primitive) << ": " << again.refusal;
        EXPECT_EQ(again.primitives[0], primitive);
      }
    }
  }
}

TEST(EngineOffers, OffersKnobsNearTheHeuristics) {
  const FakeRows fake;
  const Asked asked = ask(fake, "cudnn9.conv", "fwd_f16" + kSizes);
  std::set<std::string> knobs;
  for (const std::size_t i : asked.of_engine(kTensorCores + ".krsc{")) {
    knobs.insert(asked.offer.primitives[i].name);
  }
  EXPECT_GE(knobs.size(), 2U);
}

TEST(EngineOffers, IsStrictAboutF32) {
  const FakeRows fake;
  const Asked strict = ask(fake, "cudnn9.conv", "fwd_f32" + kSizes);
  EXPECT_TRUE(strict.of_engine(kTensorCores).empty());
  EXPECT_NE(strict.reason_of("cudnn9.conv.e2").find("computes in TF32"), std::string::npos);
  const Asked tf32 = ask(fake, "cudnn9.conv", "fwd_tf32" + kSizes);
  ASSERT_FALSE(tf32.of_engine(kTensorCores).empty());
  for (const std::size_t i : tf32.of_engine(kTensorCores)) {
    EXPECT_EQ(tf32.offer.traits[i].numerics, std::vector<std::string>{"tensor_core"});
  }
  for (const Asked* asked : {&strict, &tf32}) {
    EXPECT_TRUE(asked->of_engine(kDownConverting).empty());
    EXPECT_NE(asked->reason_of("cudnn9.conv.e5").find("rounds its inputs to 16 bits"),
              std::string::npos);
  }
}

TEST(EngineOffers, TellsAtomicsFromDeterministicEngines) {
  const FakeRows fake;
  const Asked asked = ask(fake, "cudnn9.conv_bwd_data", "bwd_data_f32" + kSizes);
  ASSERT_FALSE(asked.of_engine(kAtomics).empty());
  for (const std::size_t i : asked.of_engine(kAtomics)) {
    EXPECT_FALSE(asked.offer.traits[i].is_deterministic);
  }
  for (const std::size_t i : asked.of_engine(kGeneric)) {
    EXPECT_TRUE(asked.offer.traits[i].is_deterministic);
  }
}

TEST(EngineOffers, SaysWhichFamiliesAreMissing) {
  const FakeRows fake;
  EXPECT_EQ(ask(fake, "cudnn9.conv", "fwd_f32" + kSizes).reason_of("cudnn9.conv"),
            "no Winograd or FFT engine of cuDNN 9.19.0 takes this problem on sm_90");
  EXPECT_EQ(ask(fake, "cudnn9.conv", "fwd_f32" + kSizes).reason_of("cudnn9.conv.e6"),
            "not for this GPU (sm_90): ARCH_MISMATCH (3007)");
  const Asked older = ask(fake, "cudnn9.conv", "fwd_f32" + kSizes, fake_device(75, -1));
  EXPECT_EQ(older.reason_of("cudnn9.conv"),
            "no FFT engine of cuDNN 9.19.0 takes this problem on sm_75");
  ASSERT_FALSE(older.of_engine(kWinograd).empty());
  EXPECT_EQ(older.offer.traits[older.of_engine(kWinograd)[0]].numerics,
            (std::vector<std::string>{"winograd", "winograd_4x4"}));
}

TEST(EngineOffers, DoesNotCallAMissingDriverARefusalOfTheAlgorithm) {
  const FakeRows fake({.has_compiler = false});
  const std::string reason =
      ask(fake, "cudnn9.conv", "fwd_f16" + kSizes).reason_of("cudnn9.conv.e3");
  bool is_said = false;
  for (const RefusedVariant& refused : ask(fake, "cudnn9.conv", "fwd_f16" + kSizes).offer.refused) {
    is_said =
        is_said || (refused.primitive == "cudnn9.conv.e3" &&
                    refused.reason.find("whether it runs is unknown here") != std::string::npos);
  }
  EXPECT_TRUE(is_said) << reason;
}

TEST(EngineOffers, ProvesHiddenCopiesOfItsEngines) {
  const FakeRows fake;
  const Asked asked = ask(fake, "cudnn9.conv", "fwd_f16" + kSizes);
  for (const std::size_t i : asked.of_engine(kTensorCores)) {
    const Primitive& primitive = asked.offer.primitives[i];
    if (primitive.src == Layout::kNhwc && primitive.dst == Layout::kNhwc &&
        weights_layout(primitive) == Layout::kNhwc) {
      EXPECT_EQ(asked.offer.traits[i].hidden_bytes, 0) << primitive.name;
    }
  }
  for (const std::size_t i : asked.of_engine(kPrecomputed)) {
    const Primitive& primitive = asked.offer.primitives[i];
    if (primitive.src == Layout::kNhwc && primitive.dst == Layout::kNchw &&
        weights_layout(primitive) == Layout::kNchw) {
      EXPECT_EQ(asked.offer.traits[i].hidden_bytes, 2 * 2 * 8 * 12 * 12) << primitive.name;
    }
  }
}

TEST(EngineOffers, RefusesWhatItDoesNotCompute) {
  const FakeRows fake;
  const auto refusal = [&](const std::string& row, const std::string& problem) {
    return ask(fake, row, problem).offer.refusal;
  };
  EXPECT_EQ(refusal("cudnn9.conv", "relu_f32_n1c4h5w5"), "computes convolutions only");
  EXPECT_EQ(refusal("cudnn9.conv", "bwd_data_f32" + kSizes), "computes fwd");
  EXPECT_EQ(refusal("cudnn9.conv", "fwd_f32" + kSizes + "+bias"),
            "computes convolutions with no epilogue");
  EXPECT_EQ(refusal("cudnn9.conv_bias_relu", "fwd_f32" + kSizes + "+bias+silu"),
            "computes convolutions with +bias+relu");
}

TEST(EngineOffers, RefusesADeviceThatIsNotDescribed) {
  const FakeRows fake;
  Device device = fake_device(90, -1);
  device.properties.clear();
  EXPECT_EQ(ask(fake, "cudnn9.conv", "fwd_f32" + kSizes, device).offer.refusal,
            "the device is described without cuDNN's properties");
  EXPECT_EQ(ask(fake, "cudnn9.conv", "fwd_f32" + kSizes, Device()).offer.refusal,
            "does not run on CPUs");
}

TEST(EngineOffers, OfferOneSaysWhatANameShouldBe) {
  const FakeRows fake;
  const Problem problem = parse_problem("fwd_f16" + kSizes);
  const auto refusal = [&](const std::string& name) {
    const Primitive primitive{name, Layout::kNchw, Layout::kNchw, 0};
    return fake.row("cudnn9.conv.e0").offer_one(problem, fake_device(), primitive).refusal;
  };
  for (const char* name : {"cudnn9.conv.22", "cudnn9.conv_bwd_data.e0"})
    EXPECT_NE(refusal(name).find("expected cudnn9.conv.e<number>"), std::string::npos) << name;
  EXPECT_EQ(refusal("cudnn9.conv.e99"), "cuDNN 9.19.0 has no engine of this number");
  EXPECT_NE(refusal("cudnn9.conv.e2{TILE_SIZE=1}"), "");
  EXPECT_EQ(refusal("cudnn9.conv.e0"), "");
}

TEST(EngineOffers, SaysThatNoneTakesTheProblem) {
  FakeRows fake;
  std::optional<DescriptorType> last;
  const auto api = fake::intercept(fake.cudnn.api(), [&](const fake::CallRecord& record) {
    if (record.created) last = record.created;
    const bool is_engine = record.function == "finalize" && last == DescriptorType::kEngine;
    return is_engine ? std::optional(kNotSupported) : std::nullopt;
  });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  const Problem problem = parse_problem("fwd_f16" + kSizes);
  const Algorithm& row = fake.row("cudnn9.conv.e0");
  EXPECT_EQ(row.offer(problem, fake_device()).refusal,
            "none of the 7 engines of cuDNN 9.19.0 takes this problem on sm_90");
  EXPECT_EQ(row.offer_one(problem, fake_device(), {"cudnn9.conv", Layout::kNchw, Layout::kNchw, 0})
                .refusal,
            "the heuristics of cuDNN 9.19.0 propose no engine for this problem");
}

TEST(EngineOffers, OffersTheHeuristicsBestForItsOwnName) {
  const FakeRows fake;
  const Problem problem = parse_problem("fwd_f16" + kSizes);
  const auto best = [&](const std::string& name, Layout layout) {
    return fake.row("cudnn9.conv.e0").offer_one(problem, fake_device(), {name, layout, layout, 0});
  };
  const Offer nchw = best("cudnn9.conv", Layout::kNchw);
  const Offer nhwc = best("cudnn9.conv.krsc", Layout::kNhwc);
  ASSERT_FALSE(nchw.primitives.empty()) << nchw.refusal;
  ASSERT_FALSE(nhwc.primitives.empty()) << nhwc.refusal;
  EXPECT_EQ(nhwc.traits.size(), nhwc.primitives.size());
  for (const Offer* offer : {&nchw, &nhwc}) {
    const Layout layout = offer == &nchw ? Layout::kNchw : Layout::kNhwc;
    for (const Primitive& primitive : offer->primitives) {
      EXPECT_EQ(primitive.src, layout);
      EXPECT_EQ(primitive.dst, layout);
      EXPECT_EQ(weights_layout(primitive), layout);
      EXPECT_EQ(best(primitive.name, layout).primitives, std::vector{primitive});
    }
  }
}

TEST(EngineOffers, AsksOnceForTheSameQuestion) {
  const FakeRows fake;
  for (const int index : {0, -1}) {
    const Device device = fake_device(90, index);
    const Asked first = ask(fake, "cudnn9.conv", "fwd_f16" + kSizes, device);
    const std::int64_t created = fake.cudnn.stats().created;
    const Asked second = ask(fake, "cudnn9.conv", "fwd_f16" + kSizes, device);
    EXPECT_EQ(first.offer.primitives, second.offer.primitives);
    const int properties = index < 0 ? 1 : 0;  // only a described GPU needs them
    EXPECT_EQ(fake.cudnn.stats().created, created + properties);
    EXPECT_EQ(fake.cudnn.stats().alive, 0);
  }
}

TEST(EngineOffers, AsksForAGpuOfThisProcessByItsHandle) {
  FakeRows fake;
  int handles = 0;
  const auto api = fake::intercept(fake.cudnn.api(), [&](const fake::CallRecord& record) {
    if (record.function == "create_handle") ++handles;
    return std::optional<Status>();
  });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  Device device = fake_device(90, -1);
  EXPECT_FALSE(ask(fake, "cudnn9.conv", "fwd_f16" + kSizes, device).offer.primitives.empty());
  EXPECT_EQ(handles, 0);
  device.index = 0;
  device.properties.clear();
  EXPECT_FALSE(ask(fake, "cudnn9.conv", "fwd_f16" + kSizes, device).offer.primitives.empty());
  EXPECT_EQ(handles, 1);
}

TEST(EngineOffers, AnswersThreadsAtOnce) {
  const FakeRows fake;
  std::vector<std::thread> threads;
  std::vector<std::vector<Primitive>> answers(6);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] {
      const std::string dtype = i % 2 == 0 ? "fwd_f16" : "fwd_bf16";
      answers[i] = ask(fake, "cudnn9.conv", dtype + kSizes).offer.primitives;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, answers[0]);
  EXPECT_FALSE(answers[0].empty());
  EXPECT_EQ(fake.cudnn.stats().alive, 0);
  EXPECT_EQ(fake.cudnn.stats().shared_between_threads, 0);
}

TEST(Enumerate, KeepsItsBounds) {
  const FakeRows fake;
  const auto conv = std::get<ConvProblem>(parse_problem("fwd_f16" + kSizes));
  const DeviceProperties properties =
      make_device_properties(*fake.cudnn.api(), fake_device().properties);
  const Target target{nullptr, &*properties.descriptor, "sm_90"};
  const auto count = [&](const EnumerateOptions& options) {
    return enumerate(*fake.cudnn.api(), target, conv, options).configs.size();
  };
  const std::size_t bare = count({.heuristic_limit = 0});
  const std::size_t proposed = count({.centers = 0});
  const std::size_t all = count({});
  EXPECT_LE(bare, proposed);
  EXPECT_LT(proposed, all);
  EXPECT_LE(all, proposed + 8 * EnumerateOptions().neighbours_per_layouts);
  EXPECT_EQ(count({.neighbours_per_engine = 0}), proposed);
  EXPECT_EQ(count({.neighbours_per_layouts = 0}), proposed);
}

}  // namespace
}  // namespace torchalgo::cudnn
