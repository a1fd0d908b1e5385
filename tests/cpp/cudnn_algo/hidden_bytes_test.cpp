// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/hidden_bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

namespace torchalgo::cudnn {
namespace {

using Answers = std::vector<std::optional<std::int64_t>>;

// 64 -> 64 channels, 3x3, 56x56, batch 8: the problem of the workspaces below.
ConvProblem sample_conv(DType dtype) {
  const auto problem = parse_problem("fwd_f32_n8c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1");
  ConvProblem conv = std::get<ConvProblem>(problem);
  conv.dtype = dtype;
  return conv;
}

// Samples in the order src fastest, then weights, then dst.
std::vector<WorkspaceSample> samples(const std::array<std::int64_t, 8>& workspaces) {
  std::vector<WorkspaceSample> result;
  for (unsigned i = 0; i < 8; ++i) {
    const auto layout = [&](unsigned bit) {
      return (i >> bit & 1U) != 0 ? Layout::kNhwc : Layout::kNchw;
    };
    result.push_back({{layout(0), layout(1), layout(2)}, workspaces[i]});
  }
  return result;
}

constexpr std::int64_t kSrc = 8 * 64 * 56 * 56, kWeights = 64 * 64 * 9, kDst = kSrc;

// The workspaces are those of cuDNN 9.19 for an H100.
TEST(HiddenBytes, OfANhwcEngineAreTheTensorsThatAreNotNhwc) {
  const auto engine22 = samples({6496272, 3285008, 6422544, 3211280, 3285008, 73744, 3211280, 0});
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kF16), engine22),
            (Answers{2 * (kSrc + kWeights + kDst), 2 * (kWeights + kDst), 2 * (kSrc + kDst),
                     2 * kDst, 2 * (kSrc + kWeights), 2 * kWeights, 2 * kSrc, 0}));
}

TEST(HiddenBytes, AreNotTheScratchOfSplitK) {
  const auto engine68 =
      samples({13517023, 7094495, 13369567, 6947039, 7094495, 671967, 6947039, 524495});
  const auto hidden = hidden_bytes(sample_conv(DType::kTf32), engine68);
  EXPECT_EQ(hidden.front(), 4 * (kSrc + kWeights + kDst));
  EXPECT_EQ(hidden.back(), 0);
}

TEST(HiddenBytes, CountTensorsThatAreCopiedWhateverTheirLayout) {
  const auto engine35 =
      samples({12992528, 12992528, 12992528, 12992528, 12992528, 12992528, 12992528, 12992528});
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kF16), engine35),
            Answers(8, 4 * (kSrc + kWeights + kDst)));  // 32-bit copies of 16-bit tensors
  const auto engine26 =
      samples({6570000, 6570000, 6570000, 6570000, 12992528, 12992528, 12992528, 12992528});
  const std::int64_t always = 4 * (kSrc + kWeights);
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kTf32), engine26),
            (Answers{always, always, always, always, always + 4 * kDst, always + 4 * kDst,
                     always + 4 * kDst, always + 4 * kDst}));
}

TEST(HiddenBytes, KnowEnginesWithTwoNativeLayouts) {
  const auto filter1 = samples({288, 288, 12845360, 6422832, 6422832, 6422832, 6422832, 288});
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kF32), filter1),
            (Answers{0, 0, 4 * (kSrc + kDst), 4 * kDst, 4 * kDst, 4 * kDst, 4 * kDst, 0}));
}

TEST(HiddenBytes, AreUnknownWhereScratchMayHideATensor) {
  const auto im2col =
      samples({28901376, 28901376, 28975120, 28975120, 32112656, 32112656, 32186384, 32186384});
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kF16), im2col), Answers(8, std::nullopt));
  const auto split_k =
      samples({6644031, 6644031, 6644031, 6644031, 6644031, 6644031, 6644031, 6644031});
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kF16), split_k), Answers(8, std::nullopt));
}

TEST(HiddenBytes, OfOneSampleAreNoneWhereNoTensorFits) {
  const WorkspaceSample small{{}, 2 * kWeights - 1};
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kF16), std::span(&small, 1)), Answers{0});
  const WorkspaceSample large{{}, 2 * kSrc - 1};
  EXPECT_EQ(hidden_bytes(sample_conv(DType::kF16), std::span(&large, 1)), Answers{std::nullopt});
}

TEST(HiddenBytes, CountPaddedChannels) {
  ConvProblem conv = sample_conv(DType::kTf32);
  conv.c = 63;
  conv.k = 65;
  const std::int64_t padded = 4 * (8 * 64 * 3136 + 64 * 68 * 9 + 8 * 68 * 3136);
  const auto same = samples({padded + 16, padded + 16, padded + 16, padded + 16, padded + 16,
                             padded + 16, padded + 16, padded + 16});
  EXPECT_EQ(hidden_bytes(conv, same), Answers(8, padded));
}

// Whatever an engine with a native choice of layouts copies beside scratch too small to hide any.
TEST(HiddenBytes, AreRecoveredForEveryNativeChoiceOfLayouts) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    ConvProblem conv = sample_conv(round % 2 == 0 ? DType::kF16 : DType::kF32);
    conv.n = 1 + random() % 4;
    conv.c = 8 * (1 + random() % 40);
    conv.k = 8 * (1 + random() % 40);
    conv.h = 8 + random() % 60;
    const std::int64_t width = round % 2 == 0 ? 2 : 4;
    const std::array<std::int64_t, 3> bytes = {width * conv.n * conv.c * conv.h * conv.w,
                                               width * conv.c * conv.k * 9,
                                               width * conv.n * conv.k * conv.h * conv.w};
    const unsigned native = random() % 8;
    const std::int64_t scratch = random() % 400;
    std::array<std::int64_t, 8> workspaces{};
    Answers expected;
    for (unsigned i = 0; i < 8; ++i) {
      std::int64_t copied = 0;
      for (unsigned t = 0; t < 3; ++t) {
        if (((i ^ native) >> t & 1U) != 0) copied += bytes[t];
      }
      workspaces[i] = scratch + copied;
      expected.emplace_back(copied);
    }
    EXPECT_EQ(hidden_bytes(conv, samples(workspaces)), expected) << to_string(conv);
  }
}

}  // namespace
}  // namespace torchalgo::cudnn
