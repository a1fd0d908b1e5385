// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/legacy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cudnn_algo/legacy_call.h"
#include "cudnn_algo/repeated.h"

namespace torchalgo::cudnn {
namespace {

using fake::fake_device;
using fake::FakeRows;
using fake::Repeated;

constexpr Direction kDirections[] = {Direction::kForward, Direction::kBackwardData,
                                     Direction::kBackwardFilter};

const std::string kSizes = "n2c4h6w5_k6r3s3_st1x1_pad1x1_dil1x1_g1";

std::string reason_of(const Offer& offer, const std::string& name) {
  for (const RefusedVariant& refused : offer.refused) {
    if (refused.primitive == name) return refused.reason;
  }
  return "(not refused)";
}

std::set<std::string> names_of(const Offer& offer) {
  std::set<std::string> names;
  for (const Primitive& primitive : offer.primitives) names.insert(primitive.name);
  return names;
}

Offer offer_of(const FakeRows& fake, const std::string& problem, const Device& device) {
  const Problem parsed = parse_problem(problem);
  const Direction direction = std::get<ConvProblem>(parsed).direction;
  return fake.row(std::string(legacy_algorithm_name(direction)) + ".0").offer(parsed, device);
}

TEST(LegacySpec, PrintsAndParsesEveryName) {
  std::set<std::string> names;
  for (const Direction direction : kDirections) {
    for (const LegacyAlgorithm& algorithm : legacy_algorithms(direction)) {
      for (const Layout weights : {Layout::kNchw, Layout::kNhwc}) {
        for (const MathType math : {MathType::kDefault, MathType::kTensorOp,
                                    MathType::kTensorOpAllowConversion, MathType::kFma}) {
          const LegacySpec spec = {direction, algorithm.number, weights, math};
          const std::string name = to_string(spec);
          EXPECT_EQ(parse_legacy_spec(name), spec) << name;
          EXPECT_EQ(weights_layout({name}), weights) << name;
          names.insert(name);
        }
      }
    }
  }
  EXPECT_EQ(names.size(), (8U + 6U + 7U) * 2 * 4);
  EXPECT_EQ(to_string(LegacySpec{Direction::kForward, 1, Layout::kNhwc, MathType::kFma}),
            "cudnn_legacy.fwd.1.krsc@fma");
}

TEST(LegacySpec, UnderstandsDefaultAndRefusesOtherTexts) {
  EXPECT_EQ(parse_legacy_spec("cudnn_legacy.fwd.1@default"),
            (LegacySpec{Direction::kForward, 1, Layout::kNchw, MathType::kDefault}));
  for (const std::string text :
       {"cudnn_legacy.fwd", "cudnn_legacy.fwd.8", "cudnn_legacy.bwd_data.6", "cudnn_legacy.fwd.01",
        "cudnn_legacy.fwd.-1", "cudnn_legacy.fwd.1@fast", "cudnn_legacy.fwd.1@fma.krsc",
        "cudnn_legacy.fwd.1{SPLIT_K=2}", "cudnn_legacy.dgrad.1", "cudnn9.conv.e1", ""}) {
    EXPECT_FALSE(parse_legacy_spec(text)) << text;
  }
}

TEST(LegacySpec, NumbersHaveTheHeadersWords) {
  EXPECT_EQ(legacy_algorithms(Direction::kForward)[7].word, "WINOGRAD_NONFUSED");
  EXPECT_EQ(legacy_algorithms(Direction::kBackwardData)[2].word, "FFT");
  EXPECT_EQ(legacy_algorithms(Direction::kBackwardFilter)[3].word, "ALGO_3");
  for (const Direction direction : kDirections) {
    int number = 0;
    for (const LegacyAlgorithm& each : legacy_algorithms(direction))
      EXPECT_EQ(each.number, number++);
  }
}

TEST(LegacyOffers, EqualsTheReferenceInEveryVariant) {
  FakeRows fake;
  for (const std::string kind : {"fwd", "fwd+bias", "bwd_data", "bwd_filter"}) {
    const std::string direction = kind.substr(0, kind.find('+'));
    const std::string epilogue = kind.substr(direction.size());
    for (const std::string dtype : {"f64", "f32", "tf32", "f16", "bf16"}) {
      for (const std::string sizes :
           {kSizes, std::string("n1c4h9w8_k8r3s2_st2x1_pad2x1_dil2x1_g2"),
            std::string("n1c2d4h5w4_k4t2r3s3_st1x2x1_pad1x1x0_dil1x1x1_g2")}) {
        const std::string text = direction + "_" + dtype + "_" + sizes + epilogue;
        const Offer offer = offer_of(fake, text, fake_device());
        const double limit = dtype == "bf16" ? 2e-2 : dtype == "f16" ? 2e-3 : 1e-6;
        const auto results =
            check_primitives(fake.rows, parse_problem(text), offer.primitives, limit);
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].failure, "") << to_string(offer.primitives[i]) << " " << text;
        }
        // Four pairs of layouts with kcrs weights and one with krsc, per number and math type.
        const std::size_t numbers = direction == "fwd" ? 3 : 2;
        const std::size_t maths = dtype == "f64" || dtype == "f32" ? 1 : 3;
        EXPECT_EQ(offer.primitives.size(), numbers * maths * 5) << text << ": " << offer.refusal;
      }
    }
  }
  EXPECT_EQ(fake.cudnn.stats().crashes, 0);
}

TEST(LegacyOffers, FusesNothingButABias) {
  const FakeRows fake;
  for (const std::string epilogue : {"+relu", "+bias+relu", "+bias+add"}) {
    EXPECT_EQ(offer_of(fake, "fwd_f32_" + kSizes + epilogue, fake_device()).refusal,
              "fuses nothing but a bias");
  }
  EXPECT_EQ(
      offer_of(fake, "fwd_f32_n2c4h6w5_k6r3s3_st2x2_pad0x0x1x1_dil1x1_g1", fake_device()).refusal,
      "needs as many zeros before the image as after it");
}

TEST(LegacyOffers, AsksTheGpuForWorkspaces) {
  FakeRows fake;
  Repeated gemm(fake, "fwd_tf32_" + kSizes, "cudnn_legacy.fwd.2");
  EXPECT_EQ(gemm.primitive_.workspace_bytes, 2 * 4 * 9 * 6 * 5 * 4);
  EXPECT_TRUE(gemm.is_right(gemm.run()));
}

TEST(LegacyOffers, TellsWhatTheGpuRefusesWithTheDocumentedReason) {
  FakeRows fake;
  const Offer offer = offer_of(fake, "fwd_f32_" + kSizes, fake_device());
  EXPECT_EQ(names_of(offer),
            (std::set<std::string>{"cudnn_legacy.fwd.0", "cudnn_legacy.fwd.0.krsc",
                                   "cudnn_legacy.fwd.1", "cudnn_legacy.fwd.1.krsc",
                                   "cudnn_legacy.fwd.2", "cudnn_legacy.fwd.2.krsc"}));
  const std::string direct = reason_of(offer, "cudnn_legacy.fwd.3");
  EXPECT_NE(direct.find("DIRECT was never implemented; cuDNN says: "), std::string::npos) << direct;
  EXPECT_NE(direct.find("(3000)"), std::string::npos) << direct;
  const std::string winograd = reason_of(offer, "cudnn_legacy.fwd.6");
  EXPECT_NE(winograd.find("WINOGRAD is not supported on Hopper and later (this is sm_90)"),
            std::string::npos)
      << winograd;
  EXPECT_NE(reason_of(offer, "cudnn_legacy.fwd@tensor_op").find("the problem is f32"),
            std::string::npos);
}

TEST(LegacyOffers, OffersWinogradWhereTheGpuHasIt) {
  FakeRows fake({.sm = 80});
  EXPECT_TRUE(names_of(offer_of(fake, "fwd_f32_" + kSizes, fake_device(80)))
                  .contains("cudnn_legacy.fwd.6"));
}

TEST(LegacyOffers, AnswersFromTheDocumentationForADescribedDevice) {
  std::int64_t asked = 0;
  FakeRows fake;
  const auto api = fake::intercept(fake.cudnn.api(), [&](const fake::CallRecord&) {
    ++asked;
    return std::optional<Status>();
  });
  fake.rows = cudnn_algorithms(api, fake.cudnn.runtime());
  const Offer offer =
      offer_of(fake, "fwd_f16_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1", fake_device(90, -1));
  EXPECT_EQ(asked, 0) << "without a handle the library's questions crash";
  ASSERT_EQ(offer.primitives.size(), offer.traits.size());
  for (std::size_t i = 0; i < offer.primitives.size(); ++i) {
    const auto& numerics = offer.traits[i].numerics;
    EXPECT_TRUE(std::ranges::find(numerics, "documented, not asked") != numerics.end());
    const Primitive& primitive = offer.primitives[i];
    if (primitive.name == "cudnn_legacy.fwd.0") EXPECT_EQ(primitive.workspace_bytes, 0);
    if (primitive.name == "cudnn_legacy.fwd.1") EXPECT_EQ(primitive.workspace_bytes, 2304);
    if (primitive.name == "cudnn_legacy.fwd.2") EXPECT_EQ(primitive.workspace_bytes, 28901376);
  }
  EXPECT_EQ(reason_of(offer, "cudnn_legacy.fwd.3"), "DIRECT was never implemented");
  const Offer ampere =
      offer_of(fake, "fwd_f16_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1", fake_device(80, -1));
  EXPECT_NE(reason_of(ampere, "cudnn_legacy.fwd.6").find("known on the GPU itself only"),
            std::string::npos);
}

TEST(LegacyOffers, TellsAtomicsFromDeterministicAlgorithms) {
  FakeRows fake;
  for (const std::string direction : {"bwd_data", "bwd_filter"}) {
    const Offer offer = offer_of(fake, direction + "_tf32_" + kSizes, fake_device());
    for (std::size_t i = 0; i < offer.primitives.size(); ++i) {
      const auto spec = parse_legacy_spec(offer.primitives[i].name);
      EXPECT_EQ(offer.traits[i].is_deterministic, spec->number == 1) << offer.primitives[i].name;
    }
  }
}

TEST(LegacyOffers, SetsFmaMathForStrictF32) {
  EXPECT_EQ(math_type({}, DType::kF32), MathType::kFma);
  EXPECT_EQ(math_type({}, DType::kTf32), MathType::kDefault);
  FakeRows fake;
  const Problem strict = parse_problem("fwd_f32_" + kSizes);
  const auto ask = [&](const Problem& problem, const std::string& name) {
    return offer_exact(fake.row(name), problem, fake_device(), name, Layout::kNchw, Layout::kNchw);
  };
  EXPECT_NE(ask(strict, "cudnn_legacy.fwd.1@tensor_op").refusal.find("the problem is f32"),
            std::string::npos);
  EXPECT_EQ(ask(strict, "cudnn_legacy.fwd.1@fma").refusal, "");
  const Problem tf32 = parse_problem("fwd_tf32_" + kSizes);
  EXPECT_EQ(ask(tf32, "cudnn_legacy.fwd.1@fma").refusal, "");
  EXPECT_EQ(ask(tf32, "cudnn_legacy.fwd.1@tensor_op").refusal, "");
  EXPECT_NE(ask(tf32, "cudnn_legacy.fwd.1@tensor_op_conversion").refusal.find("16 bits"),
            std::string::npos);
}

TEST(LegacyOffers, OfferOneSaysWhatANameShouldBe) {
  FakeRows fake;
  const Problem problem = parse_problem("fwd_f32_" + kSizes);
  for (const std::string name : {"cudnn_legacy.fwd.9", "cudnn_legacy.bwd_data.1"}) {
    const Offer offer =
        fake.row("cudnn_legacy.fwd.9")
            .offer_one(problem, fake_device(), {name, Layout::kNchw, Layout::kNchw});
    EXPECT_NE(offer.refusal.find("expected cudnn_legacy.fwd.<0 to 7>"), std::string::npos)
        << offer.refusal;
  }
}

TEST(LegacyOffers, SaysThatNoneTakesTheProblem) {
  FakeRows fake;
  fake.rows = cudnn_algorithms(
      fake::intercept(fake.cudnn.api(),
                      [](const fake::CallRecord& record) {
                        const bool is_question = record.function == "legacy.get_forward_workspace";
                        return is_question ? std::optional(kNotSupported) : std::nullopt;
                      }),
      fake.cudnn.runtime());
  EXPECT_EQ(offer_of(fake, "fwd_f32_" + kSizes, fake_device()).refusal,
            "none of the 8 legacy algorithms takes this problem on sm_90");
}

TEST(LegacyOffers, RefusesWithoutItsFunctions) {
  FakeRows fake({.has_legacy = false});
  EXPECT_EQ(offer_of(fake, "fwd_f32_" + kSizes, fake_device()).refusal,
            "cuDNN 9.19.0 has no legacy convolution functions");
}

TEST(LegacyOffers, RefusesWhatAnIntCannotHold) {
  FakeRows fake;
  const Offer offer =
      offer_of(fake, "fwd_f16_n70000c64h64w64_k8r1s1_st1x1_pad0x0_dil1x1_g1", fake_device());
  EXPECT_NE(offer.refusal.find("less than 2^31 elements"), std::string::npos) << offer.refusal;
}

// Descriptors need no GPU, so that the real library checks what is passed to it.
TEST(LegacyDescriptors, AreTakenByTheRealLibrary) {
  const LoadedApi real = process_api();
  if (real.api == nullptr) GTEST_SKIP() << real.absence;
  for (const std::string text :
       {std::string("fwd_f32_") + kSizes, std::string("bwd_data_bf16_") + kSizes,
        std::string("bwd_filter_f64_n1c4h9w8_k8r3s2_st2x1_pad2x1_dil2x1_g2"),
        std::string("fwd_f16_n1c2d4h5w4_k4t2r3s3_st1x2x1_pad1x1x0_dil1x1x1_g2")}) {
    const auto conv = std::get<ConvProblem>(parse_problem(text));
    EXPECT_EQ(legacy_absence(*real.api, conv), std::nullopt) << text;
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
      for (const MathType math : {MathType::kDefault, MathType::kTensorOp, MathType::kFma}) {
        EXPECT_NO_THROW(LegacyDescriptors(*real.api, conv, {layout, layout, layout}, math)) << text;
      }
    }
  }
}

TEST(LegacyRules, RefuseByTheDocumentedTable) {
  const auto refusal = [](const std::string& text, int number, Layout layout = Layout::kNchw,
                          Layout weights = Layout::kNchw) {
    const auto conv = std::get<ConvProblem>(parse_problem(text));
    return documented_refusal(conv, {conv.direction, number, weights}, {layout, weights, layout},
                              "sm_80")
        .value_or("");
  };
  const std::string volume = "n1c4d5h5w5_k4t3r3s3_st1x1x1_pad1x1x1_dil1x1x1_g1";
  const std::string dilated = "n1c4h9w9_k4r3s3_st1x1_pad1x1_dil2x2_g1";
  const std::string strided = "n1c4h9w9_k4r3s3_st2x2_pad1x1_dil1x1_g1";
  EXPECT_EQ(refusal("fwd_f32_" + kSizes, 0), "");
  EXPECT_EQ(refusal("fwd_f32_n1c4h9w9_k4r3s3_st1x1_pad1x1_dil2x2_g1", 1), "needs dilation 1");
  EXPECT_EQ(refusal("fwd_f32_n1c4h9w9_k4r3s3_st1x1_pad1x1_dil2x2_g1", 0), "");
  EXPECT_EQ(refusal("fwd_bf16_" + kSizes, 2), "is not documented for bf16");
  EXPECT_EQ(refusal("fwd_f32_" + kSizes, 4, Layout::kNhwc), "needs all tensors in nchw");
  EXPECT_EQ(refusal("fwd_f32_n1c4h255w9_k4r3s3_st1x1_pad1x1_dil1x1_g1", 4),
            "needs padded images up to 256x256, got 257x11");
  EXPECT_EQ(refusal("fwd_f32_n1c4h9w9_k4r3s3_st2x2_pad1x1_dil1x1_g1", 6), "needs stride 1");
  EXPECT_EQ(refusal("fwd_f32_n1c4h9w9_k4r5s5_st1x1_pad2x2_dil1x1_g1", 6),
            "needs a 3x3 filter, got 5x5");
  EXPECT_EQ(refusal("fwd_f32_n1c4h9w9_k4r5s5_st1x1_pad2x2_dil1x1_g1", 7), "");
  EXPECT_EQ(refusal("fwd_f32_" + volume, 2), "is for 2-D only");
  EXPECT_EQ(refusal("fwd_f32_" + dilated, 2), "needs dilation 1");
  EXPECT_EQ(refusal("fwd_f64_" + kSizes, 4), "is not documented for f64");
  EXPECT_EQ(refusal("fwd_f32_" + strided, 4), "needs stride 1");
  EXPECT_EQ(refusal("fwd_f32_" + dilated, 4), "needs dilation 1");
  EXPECT_EQ(refusal("fwd_f32_" + volume, 4), "is for 2-D only");
  EXPECT_EQ(refusal("fwd_f32_n1c4h9w255_k4r3s3_st1x1_pad1x1_dil1x1_g1", 4),
            "needs padded images up to 256x256, got 11x257");
  EXPECT_EQ(refusal("fwd_f32_n1c4h99w99_k4r33s3_st1x1_pad1x1_dil1x1_g1", 5),
            "needs a filter up to 32 in each direction");
  EXPECT_EQ(refusal("fwd_f32_n1c4h99w99_k4r33s3_st1x1_pad1x1_dil1x1_g1", 4), "");
  EXPECT_EQ(refusal("fwd_f32_n1c4d5h99w99_k4t3r17s3_st1x1x1_pad1x1x1_dil1x1x1_g1", 5),
            "needs a filter up to 16 in each direction");
  EXPECT_EQ(refusal("fwd_f64_n1c4h1w99_k4r1s33_st1x1_pad0x1_dil1x1_g1", 5), "");
  for (const char* conv :
       {"n1c4h9w9_k4r3s3_st1x1_pad3x1_dil1x1_g1", "n1c4h9w9_k4r3s3_st1x1_pad1x3_dil1x1_g1",
        "n1c4d5h9w9_k4t3r3s3_st1x1x1_pad3x1x1_dil1x1x1_g1"})
    EXPECT_EQ(refusal(std::string("fwd_f32_") + conv, 5), "needs a filter larger than the padding");
  EXPECT_EQ(refusal("fwd_bf16_" + kSizes, 6), "is not documented for bf16");
  EXPECT_EQ(refusal("fwd_f64_" + kSizes, 7), "is not documented for f64");
  EXPECT_EQ(refusal("fwd_f32_n1c4h9w9_k4r7s7_st1x1_pad2x2_dil1x1_g1", 7),
            "needs a 3x3 or 5x5 filter, got 7x7");
  EXPECT_EQ(refusal("fwd_f32_" + volume, 7),
            "needs a 3x3 or 5x5 filter, got 3x3 of a 3-D convolution");
  EXPECT_EQ(refusal("fwd_f32_" + dilated, 7), "needs dilation 1");
  EXPECT_EQ(refusal("fwd_f32_" + kSizes, 2, Layout::kNhwc, Layout::kNhwc),
            "takes weights in kcrs only");
  EXPECT_EQ(refusal("fwd_f32_" + kSizes, 1, Layout::kNchw, Layout::kNhwc),
            "takes weights in krsc only if all is in nhwc");
  EXPECT_EQ(refusal("bwd_filter_bf16_" + kSizes, 3), "is not documented for bf16");
  EXPECT_EQ(refusal("bwd_filter_f32_" + kSizes, 3, Layout::kNhwc), "needs all tensors in nchw");
  EXPECT_EQ(refusal("bwd_filter_f32_" + dilated, 3), "needs dilation 1");
  EXPECT_EQ(refusal("bwd_filter_f32_" + kSizes, 4), "was never implemented");
  EXPECT_EQ(refusal("bwd_data_f32_" + kSizes, 4), "");
}

}  // namespace
}  // namespace torchalgo::cudnn
