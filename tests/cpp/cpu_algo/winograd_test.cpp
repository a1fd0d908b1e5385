// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cpu_algo/kernels/winograd.h"
#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

ConvProblem conv_of(const std::string& text) { return std::get<ConvProblem>(parse_problem(text)); }

std::string name_of(const kernels::WinogradTile& tile) {
  return fmt::format("cpu.winograd_f{}x{}_{}x{}{}", tile.h.m, tile.w.m, tile.h.r, tile.w.r,
                     tile.h.stride == 2 ? "s2" : "");
}

const kernels::WinogradTile& tile_of(const std::string& name) {
  return *std::ranges::find_if(kernels::kWinogradTiles, [&](const kernels::WinogradTile& tile) {
    return name.starts_with(name_of(tile));
  });
}

// The algorithms in nChw16c, and those in nhwc.
const std::vector<std::string>& names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> all = {"cpu.winograd_f4x4_3x3_nhwc"};
    for (const kernels::WinogradTile& tile : kernels::kWinogradTiles) all.push_back(name_of(tile));
    return all;
  }();
  return kNames;
}

// Relative L2; many elements in a transform round more.
double bound_of(const kernels::WinogradTile& tile) {
  if (tile.h.stride == 2) return 2e-6;
  const int size = std::max(tile.h.size(), tile.w.size());
  return size == 4 ? 2e-6 : size == 6 ? 1e-5 : 2e-5;
}

Device device_of(const std::string& isa, int threads) {
  Device device = cpu_device();
  device.isa = isa;
  device.threads = threads;
  return device;
}

// Every variant of the rows that `isa` offers for `text` with `threads` agrees with f64. On a few
// pixels some save nothing and are not offered.
void expect_exact(const std::string& text, const std::string& isa, int threads) {
  const Threads scope(threads);
  const Problem problem = parse_problem(text);
  for (const std::string& name : names()) {
    const kernels::WinogradTile& tile = tile_of(name);
    const ConvProblem conv = conv_of(text);
    if (conv.r != tile.h.r || conv.s != tile.w.r || conv.stride_h != tile.h.stride) continue;
    const Algorithm row = cpu_algorithm(name, isa);
    const Offer offer = row.offer(problem, device_of(isa, threads));
    if (offer.refusal.starts_with("saves nothing")) continue;
    ASSERT_EQ(offer.refusal, "") << row.name << " " << text;
    const auto results = check_primitives({row}, problem, offer.primitives, bound_of(tile));
    for (std::size_t i = 0; i < results.size(); ++i) {
      expect_writes_inside(row, problem, offer.primitives[i]);
      const Primitive& primitive = offer.primitives[i];
      EXPECT_EQ(results[i].failure, "")
          << primitive.name << " " << text << " " << isa << " on " << threads << " threads";
      EXPECT_EQ(primitive.workspace_bytes % 64, 0) << primitive.name << " " << text;
      EXPECT_LE(primitive.workspace_bytes, threads * (std::int64_t{2} << 20));
    }
  }
}

const std::vector<std::string>& shapes() {
  static const std::vector<std::string> kShapes = {
      "fwd_f32_n1c16h1w1_k16r3s3_st1x1_pad2x2_dil1x1_g1+bias",
      "fwd_f32_n1c16h1w2_k16r3s3_st1x1_pad2x1_dil1x1_g1",
      "fwd_f32_n1c16h2w2_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias",
      "fwd_f32_n1c3h4w5_k5r3s3_st1x1_pad0x0_dil1x1_g1+bias+relu",
      "fwd_f32_n1c1h4w4_k1r3s3_st1x1_pad2x2_dil1x1_g1",
      "fwd_f32_n2c17h5w9_k33r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu",
      "fwd_f32_n1c32h7w7_k48r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
      "fwd_f32_n1c20h6w11_k20r3s3_st1x1_pad0x2_dil1x1_g1+bias",
      "fwd_f32_n1c20h13w11_k20r3s3_st1x1_pad0x2x3x1_dil1x1_g1+bias",
      "fwd_f32_n3c16h13w4_k40r3s3_st1x1_pad2x0_dil1x1_g1+bias+relu6",
      "fwd_f32_n1c64h28w28_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu",
      "fwd_f32_n2c48h14w14_k80r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu",
      "fwd_f32_n1c24h31w17_k72r3s3_st1x1_pad1x1_dil1x1_g1+add",
      "fwd_f32_n1c16h56w3_k16r3s3_st1x1_pad1x1_dil1x1_g1",
      "fwd_f32_n1c17h13w9_k33r3s3_st2x2_pad1x1_dil1x1_g1+bias+relu",
      "fwd_f32_n2c32h20w16_k20r3s3_st2x2_pad0x2_dil1x1_g1+add",
      "fwd_f32_n1c48h27w30_k80r3s3_st2x2_pad1x1_dil1x1_g1+bias+hardswish",
      "fwd_f32_n1c17h5w9_k33r5s5_st1x1_pad2x2_dil1x1_g1+bias+relu",
      "fwd_f32_n2c20h13w6_k20r5s5_st1x1_pad0x4_dil1x1_g1+add",
      "fwd_f32_n1c20h11w8_k33r7s7_st1x1_pad3x2_dil1x1_g1+bias+add+relu",
      "fwd_f32_n1c20h6w11_k33r1s3_st1x1_pad0x1_dil1x1_g1+bias+add+relu",
      "fwd_f32_n2c16h11w7_k20r3s1_st1x1_pad1x0_dil1x1_g1+bias",
      "fwd_f32_n1c20h6w11_k33r1s5_st1x1_pad0x2_dil1x1_g1+bias+relu6",
      "fwd_f32_n2c16h11w7_k20r5s1_st1x1_pad0x0_dil1x1_g1",
      "fwd_f32_n1c48h17w17_k40r1s7_st1x1_pad0x3_dil1x1_g1+bias+relu",
      "fwd_f32_n2c17h13w5_k20r7s1_st1x1_pad3x0_dil1x1_g1+bias",
      "fwd_f32_n1c16h3w9_k16r1s7_st1x1_pad2x0_dil1x1_g1+bias",
      "fwd_f32_n2c48h13w9_k48r3s3_st1x1_pad1x1_dil1x1_g3+bias+relu",
      "fwd_f32_n1c64h14w15_k160r3s3_st1x1_pad1x1_dil1x1_g2+bias+add+silu",
      "fwd_f32_n1c96h12w11_k32r3s3_st2x2_pad0x0x1x1_dil1x1_g2+bias",
      "fwd_f32_n2c32h9w8_k96r5s5_st1x1_pad2x2_dil1x1_g2",
  };
  return kShapes;
}

TEST(Winograd, AgreesWithF64OnOneThreadInEveryBuild) {
  for (const std::string& isa : isas()) {
    for (const std::string& shape : shapes()) expect_exact(shape, isa, 1);
  }
}

TEST(Winograd, AgreesWithF64OnTwoAndThreeThreads) {
  for (const std::string& shape : shapes()) expect_exact(shape, cpu_device().isa, 2);
  for (const std::string& shape : {shapes()[5], shapes()[12], shapes()[23]})
    expect_exact(shape, cpu_device().isa, 3);
}

TEST(Winograd, FusesEveryActivationAfterTheResidualAndLeavesPadLanesZero) {
  for (const std::string& isa : isas()) {
    for (const char* activation : {"relu", "relu6", "hardswish", "silu", "sigmoid", "hardsigmoid",
                                   "leaky_relu0.1", "clamp-1x2"}) {
      for (const char* before : {"", "+bias", "+add", "+bias+add"}) {
        for (const char* filter : {"r3s3_st1x1_pad1x1", "r1s7_st1x1_pad0x3"}) {
          expect_exact(
              fmt::format("fwd_f32_n1c18h9w7_k21{}_dil1x1_g1{}+{}", filter, before, activation),
              isa, 1);
        }
      }
    }
  }
}

TEST(Winograd, KeepsItsErrorWithManyChannels) {
  for (const std::string& isa : isas()) {
    for (const char* filter : {"r3s3_st1x1_pad1x1", "r5s5_st1x1_pad2x2", "r7s1_st1x1_pad3x0"})
      expect_exact(fmt::format("fwd_f32_n1c512h7w9_k32{}_dil1x1_g1+bias+relu", filter), isa, 1);
  }
}

TEST(Winograd, IsOfferedForTheFilterOfItsTile) {
  for (const kernels::WinogradTile& tile : kernels::kWinogradTiles) {
    const std::string text =
        fmt::format("fwd_f32_n1c32h24w24_k32r{}s{}_st{}x{}_pad{}x{}_dil1x1_g1", tile.h.r, tile.w.r,
                    tile.h.stride, tile.w.stride, tile.h.r / 2, tile.w.r / 2);
    const Algorithm row = cpu_algorithm(name_of(tile));
    EXPECT_GE(row.offer(parse_problem(text), device_of(cpu_device().isa, 1)).primitives.size(), 2U)
        << row.name;
  }
}

TEST(Winograd, RunsWithOtherThreadsThanItsWorkspaceWasOfferedFor) {
  const std::string text = "fwd_f32_n1c32h30w30_k96r3s3_st1x1_pad1x1_dil1x1_g1+bias";
  const Problem problem = parse_problem(text);
  for (const int offered : {1, 3}) {
    for (const int present : {1, 2}) {
      const Threads scope(present);
      for (const char* name : {"cpu.winograd_f2x2_3x3", "cpu.winograd_f4x4_3x3"}) {
        const Algorithm row = cpu_algorithm(name);
        const double bound = bound_of(tile_of(name));
        const auto primitives = row.offer(problem, device_of(cpu_device().isa, offered)).primitives;
        for (const CheckResult& result : check_primitives({row}, problem, primitives, bound)) {
          EXPECT_EQ(result.failure, "")
              << name << " offered for " << offered << ", run on " << present;
        }
      }
    }
  }
}

TEST(Winograd, GivesTheSameBitsOnAnyNumberOfThreads) {
  const Problem problem =
      parse_problem("fwd_f32_n1c32h14w14_k96r3s3_st1x1_pad1x1_dil1x1_g1+bias+silu");
  const Sample sample = make_sample(problem, 7);
  for (const char* name : {"cpu.winograd_f2x2_3x3", "cpu.winograd_f4x4_3x3"}) {
    const Algorithm row = cpu_algorithm(name);
    for (const Primitive& primitive :
         row.offer(problem, device_of(cpu_device().isa, 3)).primitives) {
      const Threads one(1);
      const at::Tensor expected = run_once(row, problem, primitive, sample);
      const Threads three(3);
      EXPECT_TRUE(expected.equal(run_once(row, problem, primitive, sample))) << primitive.name;
    }
  }
}

TEST(Winograd, GivesTheSameBitsInNhwcAsInBlocks) {
  for (const char* text : {"fwd_f32_n2c40h19w23_k56r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
                           "fwd_f32_n1c16h13w12_k16r3s3_st1x1_pad0x2_dil1x1_g1+bias+silu"}) {
    const Problem problem = parse_problem(text);
    const Sample sample = make_sample(problem, 7);
    for (const std::string& isa : isas()) {
      const Algorithm blocked = cpu_algorithm("cpu.winograd_f4x4_3x3", isa);
      const Algorithm nhwc = cpu_algorithm("cpu.winograd_f4x4_3x3_nhwc", isa);
      const Primitive primitive = nhwc.offer(problem, cpu_device()).primitives.front();
      EXPECT_EQ(primitive.src, Layout::kNhwc);
      EXPECT_EQ(primitive.dst, Layout::kNhwc);
      const Primitive expected = blocked.offer(problem, cpu_device()).primitives.front();
      EXPECT_TRUE(run_once(blocked, problem, expected, sample)
                      .equal(run_once(nhwc, problem, primitive, sample)))
          << text << " " << isa;
    }
  }
}

TEST(Winograd, OffersOnlyBlocksThatDiffer) {
  const auto names = [](const std::string& text) {
    std::string all;
    for (const Primitive& primitive : cpu_algorithm("cpu.winograd_f4x4_3x3")
                                          .offer(conv_of(text), device_of("avx512", 1))
                                          .primitives)
      all += primitive.name.substr(primitive.name.rfind('.') + 1) + " ";
    return all;
  };
  EXPECT_EQ(names("fwd_f32_n1c64h7w7_k64r3s3_st1x1_pad1x1_dil1x1_g1"), "t14 ");
  EXPECT_EQ(names("fwd_f32_n1c64h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g1"), "t14 t28 ");
  EXPECT_EQ(names("fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"), "t14 t28 t56 ");
  EXPECT_EQ(names("fwd_f32_n1c512h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1"), "t14 ");
}

TEST(Winograd, RefusesWithAReason) {
  const auto refusal = [](const std::string& text) {
    return cpu_algorithm("cpu.winograd_f2x2_3x3").offer(parse_problem(text), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r3s3_st2x2_pad1x1_dil1x1_g1"),
            "needs stride 1x1, got 2x2");
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r5s5_st1x1_pad2x2_dil1x1_g1"),
            "needs a 3x3 filter, got 5x5");
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad2x2_dil2x2_g1"),
            "needs dilation 1, got 2x2");
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g2"),
            "needs groups of a multiple of 16 channels, got 8 to 8");
  EXPECT_EQ(refusal("fwd_f32_n1c16h1w1_k16r3s3_st1x1_pad1x1_dil1x1_g1"),
            "saves nothing on a result of 1x1: 16 multiplications instead of 9");
  EXPECT_NE(refusal("fwd_f64_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1"), "");
  EXPECT_NE(refusal("bwd_filter_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1"), "");
  EXPECT_NE(refusal("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+relu+add"), "");
  EXPECT_NE(refusal("linear_f32_n1c16_k16"), "");
  EXPECT_EQ(cpu_algorithm("cpu.winograd_f4x4_3x3")
                .offer(parse_problem("fwd_f32_n1c4096h64w64_k16r3s3_st1x1_pad1x1_dil1x1_g1"),
                       cpu_device())
                .primitives.size(),
            0U);
}

}  // namespace
}  // namespace torchalgo
