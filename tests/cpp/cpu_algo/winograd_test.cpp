// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cpu_algo/row_check.h"
#include "cpu_algo/rows.h"

namespace torchalgo {
namespace {

constexpr const char* kF2 = "cpu.winograd_f2x2_3x3";
constexpr const char* kF4 = "cpu.winograd_f4x4_3x3";

ConvProblem conv_of(const std::string& text) { return std::get<ConvProblem>(parse_problem(text)); }

Algorithm row_of(const std::string& name, const std::string& isa) {
  return name == kF2 ? cpu::winograd_f2x2_3x3(isa) : cpu::winograd_f4x4_3x3(isa);
}
double bound_of(const std::string& name) { return name == kF2 ? 2e-6 : 1e-5; }

Device device_of(const std::string& isa, int threads) {
  Device device = cpu_device();
  device.isa = isa;
  device.threads = threads;
  return device;
}

// Every variant of the rows that `isa` offers for `text` with `threads` agrees with f64. On a few
// pixels one or both save nothing and are not offered.
void expect_exact(const std::string& text, const std::string& isa, int threads) {
  const Threads scope(threads);
  const Problem problem = parse_problem(text);
  for (const char* name : {kF2, kF4}) {
    const Algorithm row = row_of(name, isa);
    const Offer offer = row.offer(problem, device_of(isa, threads));
    if (offer.refusal.starts_with("saves nothing")) continue;
    ASSERT_EQ(offer.refusal, "") << name << " " << text;
    const auto results = check_primitives({row}, problem, offer.primitives, bound_of(name));
    for (std::size_t i = 0; i < results.size(); ++i) {
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
      "fwd_f32_n3c16h13w4_k40r3s3_st1x1_pad2x0_dil1x1_g1+bias+relu6",
      "fwd_f32_n1c64h28w28_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu",
      "fwd_f32_n2c48h14w14_k80r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu",
      "fwd_f32_n1c24h31w17_k72r3s3_st1x1_pad1x1_dil1x1_g1+add",
      "fwd_f32_n1c16h56w3_k16r3s3_st1x1_pad1x1_dil1x1_g1",
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
  for (const std::string& shape : {shapes()[5], shapes().back()})
    expect_exact(shape, cpu_device().isa, 3);
}

TEST(Winograd, FusesEveryActivationAfterTheResidualAndLeavesPadLanesZero) {
  for (const std::string& isa : isas()) {
    for (const char* activation :
         {"relu", "relu6", "hardswish", "silu", "sigmoid", "hardsigmoid"}) {
      for (const char* before : {"", "+bias", "+add", "+bias+add"}) {
        expect_exact(fmt::format("fwd_f32_n1c18h9w7_k21r3s3_st1x1_pad1x1_dil1x1_g1{}+{}", before,
                                 activation),
                     isa, 1);
      }
    }
  }
}

TEST(Winograd, KeepsItsErrorWithManyChannels) {
  for (const std::string& isa : isas())
    expect_exact("fwd_f32_n1c512h7w9_k32r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu", isa, 1);
}

TEST(Winograd, RunsWithOtherThreadsThanItsWorkspaceWasOfferedFor) {
  const std::string text = "fwd_f32_n1c32h30w30_k96r3s3_st1x1_pad1x1_dil1x1_g1+bias";
  const Problem problem = parse_problem(text);
  for (const int offered : {1, 3}) {
    for (const int present : {1, 2}) {
      const Threads scope(present);
      for (const char* name : {kF2, kF4}) {
        const Algorithm row = row_of(name, cpu_device().isa);
        const auto primitives = row.offer(problem, device_of(cpu_device().isa, offered)).primitives;
        for (const CheckResult& result :
             check_primitives({row}, problem, primitives, bound_of(name))) {
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
  for (const char* name : {kF2, kF4}) {
    const Algorithm row = row_of(name, cpu_device().isa);
    for (const Primitive& primitive :
         row.offer(problem, device_of(cpu_device().isa, 3)).primitives) {
      const Threads one(1);
      const at::Tensor expected = run_once(row, problem, primitive, sample);
      const Threads three(3);
      EXPECT_TRUE(expected.equal(run_once(row, problem, primitive, sample))) << primitive.name;
    }
  }
}

TEST(Winograd, OffersOnlyBlocksThatDiffer) {
  const auto names = [](const std::string& text) {
    std::string all;
    for (const Primitive& primitive :
         cpu::winograd_f4x4_3x3().offer(conv_of(text), device_of("avx512", 1)).primitives)
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
    return cpu::winograd_f2x2_3x3().offer(parse_problem(text), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r3s3_st2x2_pad1x1_dil1x1_g1"), "needs stride 1, got 2x2");
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r5s5_st1x1_pad2x2_dil1x1_g1"),
            "needs a 3x3 filter, got 5x5");
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad2x2_dil2x2_g1"),
            "needs dilation 1, got 2x2");
  EXPECT_EQ(refusal("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g2"), "needs 1 group, got 2");
  EXPECT_EQ(refusal("fwd_f32_n1c16h1w1_k16r3s3_st1x1_pad1x1_dil1x1_g1"),
            "saves nothing on a result of 1x1: 16 multiplications instead of 9");
  EXPECT_NE(refusal("fwd_f64_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1"), "");
  EXPECT_NE(refusal("bwd_data_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1"), "");
  EXPECT_NE(refusal("fwd_f32_n1c16h8w8_k16r3s3_st1x1_pad1x1_dil1x1_g1+relu+add"), "");
  EXPECT_NE(refusal("linear_f32_n1c16_k16"), "");
  EXPECT_EQ(cpu::winograd_f4x4_3x3()
                .offer(parse_problem("fwd_f32_n1c4096h64w64_k16r3s3_st1x1_pad1x1_dil1x1_g1"),
                       cpu_device())
                .primitives.size(),
            0U);
}

}  // namespace
}  // namespace torchalgo
