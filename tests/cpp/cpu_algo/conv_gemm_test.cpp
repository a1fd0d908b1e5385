// SPDX-License-Identifier: BSD-3-Clause
// The algorithms that multiply matrices: conv1x1, strassen_1x1, direct, stem, im2row_gemm,
// im2col_gemm.
#include <fmt/format.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

// The rounding of one sum of up to 5000 products.
constexpr double kMaxRelError = 2e-6;

constexpr const char* kNames[] = {"cpu.conv1x1", "cpu.strassen_1x1", "cpu.direct",
                                  "cpu.stem",    "cpu.im2row_gemm",  "cpu.im2col_gemm"};

// Checks every row that does not refuse the problem; returns their names.
std::set<std::string> check_rows(const std::string& text, const std::string& isa) {
  const Problem problem = parse_problem(text);
  std::set<std::string> names;
  Algorithms rows;
  std::vector<Primitive> primitives;
  for (const char* const name : kNames) {
    rows.push_back(cpu_algorithm(name, isa));
    for (Primitive& primitive : rows.back().offer(problem, cpu_device()).primitives) {
      primitives.push_back(std::move(primitive));
    }
  }
  const auto results = check_primitives(rows, problem, primitives, kMaxRelError);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].failure, "") << to_string(primitives[i]) << " " << text << " " << isa
                                      << " threads " << at::get_num_threads();
    names.insert(primitives[i].name);
  }
  return names;
}

// Filters, strides, padding, dilation, groups and channels of all kinds on small images.
const std::vector<std::string> kShapes = {
    "n1c64h14w14_k64r1s1_st1x1_pad0x0_dil1x1_g1",
    "n2c48h7w5_k80r1s1_st1x1_pad0x0_dil1x1_g1",
    "n1c17h9w11_k33r1s1_st2x2_pad0x0_dil1x1_g1",
    "n2c16h8w9_k16r1s1_st3x1_pad0x0_dil1x1_g1",
    "n1c5h1w1_k7r1s1_st1x1_pad0x0_dil1x1_g1",
    "n3c130h1w1_k1000r1s1_st1x1_pad0x0_dil1x1_g1",
    "n1c8h6w6_k24r1s1_st1x1_pad1x2_dil1x1_g1",
    "n1c64h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "n2c35h13w17_k50r3s3_st1x1_pad1x1_dil1x1_g1",
    "n1c32h15w14_k48r3s3_st2x2_pad1x1_dil1x1_g1",
    "n2c16h20w31_k16r3s3_st1x2_pad0x1_dil1x1_g1",
    "n1c20h20w9_k40r3s3_st1x1_pad2x2_dil2x2_g1",
    "n1c16h12w16_k32r3s3_st1x1_pad12x12_dil12x12_g1",
    "n1c16h10w10_k16r3s2_st2x1_pad0x0_dil2x3_g1",
    "n1c32h9w9_k64r5s5_st1x1_pad2x2_dil1x1_g1",
    "n1c24h17w17_k40r1s7_st1x1_pad0x3_dil1x1_g1",
    "n2c24h17w17_k40r7s1_st1x1_pad3x0_dil1x1_g1",
    "n1c16h1w300_k16r1s3_st1x1_pad0x1_dil1x1_g1",
    "n1c16h300w1_k16r3s1_st1x1_pad1x0_dil1x1_g1",
    "n1c16h2w2_k16r2s2_st2x2_pad0x0_dil1x1_g1",
    "n1c16h1w1_k19r3s3_st1x1_pad1x1_dil1x1_g1",
    "n1c16h2w1_k16r3s3_st1x1_pad4x5_dil1x1_g1",
    "n9c32h7w7_k64r3s3_st1x1_pad1x1_dil1x1_g1",
    "n1c64h9w10_k96r3s3_st1x1_pad1x1_dil1x1_g2",
    "n2c64h8w8_k64r3s3_st2x2_pad1x1_dil1x1_g4",
    "n2c96h6w5_k48r1s1_st1x1_pad0x0_dil1x1_g3",
    "n1c15h6w7_k48r3s3_st1x1_pad1x1_dil1x1_g3",
    "n1c12h6w7_k18r3s3_st1x1_pad1x1_dil1x1_g6",
    "n2c3h31w30_k64r7s7_st2x2_pad3x3_dil1x1_g1",
    "n1c3h32w33_k32r3s3_st2x2_pad1x1_dil1x1_g1",
    "n1c1h28w28_k20r5s5_st1x1_pad0x0_dil1x1_g1",
    "n1c4h10w9_k10r4s4_st4x4_pad0x0_dil1x1_g1",
    "n1c4h5w5_k10r1s1_st1x1_pad0x0_dil1x1_g1",
    "n1c2h9w12_k16r3s3_st1x1_pad1x1_dil1x2_g1",
    "n1c40h9w7_k320r1s1_st2x2_pad0x0_dil1x1_g1",
    "n1c3h13w12_k150r3s3_st2x2_pad1x1_dil1x1_g1",
    "n1c32h14w14_k64r2s2_st1x1_pad0x0x1x1_dil1x1_g1",
    "n2c20h9w10_k40r2s2_st1x1_pad1x1x0x0_dil1x1_g1",
    "n2c16h10w12_k32r3s3_st2x2_pad0x0x1x1_dil1x1_g1",
    "n1c24h8w9_k40r5s5_st2x2_pad1x2x2x1_dil1x1_g1",
    "n1c32h6w7_k32r1s1_st1x1_pad0x0x1x0_dil1x1_g1",
    "n1c16h6w7_k40r1s1_st1x1_pad0x0x0x2_dil1x1_g1",
    "n1c64h9w10_k96r2s2_st1x1_pad0x1x1x0_dil1x1_g2",
    "n1c3h17w16_k32r3s3_st2x2_pad0x0x1x1_dil1x1_g1",
    "n1c16h3w3_k16r3s3_st1x1_pad0x0x4x5_dil1x1_g1",
    "n1c16h9w8_k16r3s3_st1x1_pad0x1x3x0_dil2x2_g1",
};

// What is halved is odd in some way: pixels, blocks of channels on either side, lanes of the last
// block, planes of a block of K.
const std::vector<std::string> kHalvedShapes = {
    "n1c64h14w14_k64r1s1_st1x1_pad0x0_dil1x1_g1",  "n2c72h5w7_k104r1s1_st1x1_pad0x0_dil1x1_g1",
    "n3c240h3w3_k80r1s1_st1x1_pad0x0_dil1x1_g1",   "n1c100h1w2_k130r1s1_st1x1_pad0x0_dil1x1_g1",
    "n2c80h7w7_k112r1s1_st1x1_pad0x0_dil1x1_g1",   "n1c65h1w3_k64r1s1_st1x1_pad0x0_dil1x1_g1",
    "n1c1100h9w11_k96r1s1_st1x1_pad0x0_dil1x1_g1", "n1c96h29w1_k320r1s1_st1x1_pad0x0_dil1x1_g1",
};

TEST(ConvGemm, AgreesWithF64OnHalvesOfAnySize) {
  for (const std::string& isa : isas()) {
    const Algorithm row = cpu_algorithm("cpu.strassen_1x1", isa);
    for (const std::string& shape : kHalvedShapes) {
      const Problem problem = parse_problem("fwd_f32_" + shape + "+bias+relu");
      for (const Primitive& primitive : row.offer(problem, cpu_device()).primitives)
        expect_writes_inside(row, problem, primitive);
      for (const int threads : {1, 2, 6}) {
        const Threads guard(threads);
        const auto names = check_rows("fwd_f32_" + shape + "+bias+add+relu6", isa);
        EXPECT_TRUE(names.contains("cpu.strassen_1x1")) << shape;
      }
    }
  }
}

TEST(ConvGemm, AgreesWithF64OnEveryShapeInEveryBuild) {
  const Threads one(1);
  for (const std::string& isa : isas()) {
    for (const std::string& shape : kShapes) {
      const auto names = check_rows("fwd_f32_" + shape + "+bias+relu", isa);
      EXPECT_TRUE(names.contains("cpu.im2col_gemm")) << shape;
    }
  }
}

TEST(ConvGemm, AgreesWithF64OnTwoThreads) {
  const Threads two(2);
  for (const std::string& shape : kShapes) check_rows("fwd_f32_" + shape, cpu_device().isa);
}

TEST(ConvGemm, AgreesWithF64OnMoreThreadsThanBlocks) {
  const Threads many(6);
  for (const std::string& shape : kShapes) check_rows("fwd_f32_" + shape, cpu_device().isa);
}

TEST(ConvGemm, AppliesEveryEpilogueAndKeepsPadLanesZero) {
  const std::vector<std::string> shapes = {
      "n2c20h6w7_k35r3s3_st1x1_pad1x1_dil1x1_g1", "n1c24h5w5_k40r1s1_st1x1_pad0x0_dil1x1_g1",
      "n1c72h5w5_k72r1s1_st1x1_pad0x0_dil1x1_g1", "n1c3h9w9_k20r3s3_st2x2_pad1x1_dil1x1_g1"};
  const std::vector<std::string> starts = {"", "+bias", "+add", "+bias+add"};
  const std::vector<std::string> ends = {
      "",      "+relu",      "+relu6",         "+hardswish", "+silu", "+sigmoid", "+hardsigmoid",
      "+gelu", "+gelu_tanh", "+leaky_relu0.1", "+clamp-1x2"};
  const Threads one(1);
  for (const std::string& isa : isas()) {
    for (const std::string& shape : shapes) {
      for (const std::string& start : starts) {
        for (const std::string& end : ends) check_rows("fwd_f32_" + shape + start + end, isa);
      }
    }
  }
}

// Several blocks of K, so that a sum is stored, loaded and finished later, and several blocks of
// pixels.
TEST(ConvGemm, AgreesWithF64WhereTheWorkIsCutIntoBlocks) {
  const std::vector<std::string> shapes = {"n1c1536h7w7_k40r1s1_st1x1_pad0x0_dil1x1_g1",
                                           "n1c400h7w7_k40r3s3_st1x1_pad1x1_dil1x1_g1",
                                           "n1c1200h14w15_k80r1s1_st1x1_pad0x0_dil1x1_g1",
                                           "n2c128h57w56_k72r1s1_st1x1_pad0x0_dil1x1_g1",
                                           "n2c64h57w56_k32r3s3_st1x1_pad1x1_dil1x1_g1",
                                           "n1c128h57w56_k32r1s1_st1x1_pad0x0_dil1x1_g1",
                                           "n20c80h14w14_k17r3s3_st2x2_pad1x1_dil1x1_g1",
                                           "n1c3h150w151_k32r7s7_st2x2_pad3x3_dil1x1_g1"};
  for (const int threads : {1, 2, 3}) {
    const Threads guard(threads);
    for (const std::string& shape : shapes) {
      check_rows("fwd_f32_" + shape + "+bias+add+silu", cpu_device().isa);
    }
  }
}

TEST(ConvGemm, RunsOnFewerAndOnMoreThreadsThanItWasOfferedFor) {
  for (const char* filter : {"k64r3s3_st1x1_pad1x1_dil1x1_g1", "k64r1s1_st1x1_pad0x0_dil1x1_g1"}) {
    const Problem problem = parse_problem(fmt::format("fwd_f32_n1c64h20w20_{}+bias", filter));
    const Sample sample = make_sample(problem, 1);
    const at::Tensor reference = reference_result(problem, sample);
    for (const char* const name : kNames) {
      const Algorithm row = cpu_algorithm(name);
      for (const int offered : {1, 4}) {
        Device device = cpu_device();
        device.threads = offered;
        for (const Primitive& primitive : row.offer(problem, device).primitives) {
          for (const int threads : {1, 2, 8}) {
            const Threads guard(threads);
            const at::Tensor result = run_once(row, problem, primitive, sample).to(at::kDouble);
            EXPECT_LT(result.sub(reference).norm().item<double>(),
                      kMaxRelError * reference.norm().item<double>())
                << to_string(primitive) << " offered for " << offered << ", run on " << threads;
          }
        }
      }
    }
  }
}

TEST(ConvGemm, KeepsNanThroughRelu) {
  const Problem problem = parse_problem("fwd_f32_n1c16h4w4_k16r1s1_st1x1_pad0x0_dil1x1_g1+relu6");
  Sample sample = make_sample(problem, 1);
  sample.src[0].fill_(std::numeric_limits<double>::quiet_NaN());
  for (const char* const name : kNames) {
    const Algorithm row = cpu_algorithm(name);
    for (const Primitive& primitive : row.offer(problem, cpu_device()).primitives) {
      EXPECT_TRUE(run_once(row, problem, primitive, sample).isnan().all().item<bool>())
          << to_string(primitive);
    }
  }
}

std::string refusal(const char* name, const std::string& text) {
  return cpu_algorithm(name).offer(parse_problem(text), cpu_device()).refusal;
}

TEST(ConvGemm, RefusesWithTheReasonWhatItCannotRun) {
  const std::string shape = "n1c64h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g1";
  for (const char* const name : kNames) {
    EXPECT_EQ(refusal(name, "fwd_f16_" + shape), "is f32 only, got f16");
    EXPECT_EQ(refusal(name, "bwd_filter_f32_" + shape), "is forward only, got bwd_filter");
    EXPECT_EQ(refusal(name, "fwd_f32_" + shape + "+relu+bias"),
              "needs an epilogue bias, add, activation");
  }
  EXPECT_EQ(refusal("cpu.conv1x1", "fwd_f32_" + shape), "needs a 1x1 filter, got 3x3");
  EXPECT_EQ(refusal("cpu.strassen_1x1", "fwd_f32_" + shape),
            "needs a 1x1 filter without stride, padding or groups, more than one pixel, and 64 "
            "channels or more");
  EXPECT_EQ(refusal("cpu.stem", "fwd_f32_" + shape), "needs at most 4 input channels, got 64");
  EXPECT_EQ(refusal("cpu.direct", "fwd_f32_n1c64h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g8"),
            "needs groups of a multiple of 16 channels, got 8 to 8");
}

TEST(ConvGemm, OffersTheLayoutsOfEachRow) {
  const auto layouts = [](const char* name, const std::string& text) {
    std::string result;
    const Offer offer = cpu_algorithm(name).offer(parse_problem(text), cpu_device());
    for (const Primitive& primitive : offer.primitives) result += to_string(primitive) + ";";
    return result;
  };
  const std::string stem = "fwd_f32_n1c3h32w32_k16r3s3_st2x2_pad1x1_dil1x1_g1";
  EXPECT_EQ(layouts("cpu.stem", stem), "cpu.stem nchw->nChw16c;cpu.stem nhwc->nChw16c;");
  EXPECT_EQ(layouts("cpu.direct", stem), "cpu.direct nChw16c->nChw16c;");
  EXPECT_EQ(layouts("cpu.im2row_gemm", stem), "cpu.im2row_gemm nhwc->nhwc;");
  EXPECT_EQ(layouts("cpu.im2col_gemm", stem), "cpu.im2col_gemm nchw->nchw;");
}

// A variant that cuts the output channels as the plain name does would be measured for nothing.
TEST(ConvGemm, OffersOtherWidthsOfPanelsWhereTheyDiffer) {
  const auto names = [](int k, const std::string& isa) {
    const Problem problem =
        parse_problem(fmt::format("fwd_f32_n1c3h7w7_k{}r1s1_st1x1_pad0x0_dil1x1_g1", k));
    std::string result;
    for (const Primitive& primitive :
         cpu_algorithm("cpu.conv1x1", isa).offer(problem, cpu_device()).primitives) {
      result += primitive.name.substr(std::string("cpu.conv1x1").size()) + ";";
    }
    std::string of_stem;
    for (const Primitive& primitive :
         cpu_algorithm("cpu.stem", isa).offer(problem, cpu_device()).primitives) {
      if (primitive.src == Layout::kNhwc) continue;
      of_stem += primitive.name.substr(std::string("cpu.stem").size()) + ";";
    }
    EXPECT_EQ(result, of_stem) << k;
    return result;
  };
  for (const int k : {1, 16, 32, 48, 80}) EXPECT_EQ(names(k, "avx512"), ";") << k;
  EXPECT_EQ(names(64, "avx512"), ";.b4;");
  EXPECT_EQ(names(96, "avx512"), ";.b3;");
  EXPECT_EQ(names(160, "avx512"), ";.b3;.b4;");
  EXPECT_EQ(names(1000, "avx512"), ";.b4;");  // the plain name's panels have 3 blocks
  EXPECT_EQ(names(160, "avx2"), ";");
}

}  // namespace
}  // namespace torchalgo
