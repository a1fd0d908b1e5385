// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "aten_algo/list.h"
#include "aten_algo/strided.h"
#include "profiler/check.h"
#include "provider/cpu_device.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

// "{}" is the dtype.
const std::vector<const char*> kProblems = {
    "fwd_{}_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_{}_n2c16h15w13_k24r3s3_st2x1_pad1x0_dil1x2_g4",
    "fwd_{}_n2c8h9w9_k8r3s3_st1x1_pad2x2_dil2x2_g8",
    "fwd_{}_n2c8h9w9_k8r3s3_st2x2_pad0x0x1x1_dil1x1_g8",
    "fwd_{}_n1c4h9w8_k8r2s3_st1x1_pad1x0x0x2_dil1x1_g2",
    "fwd_{}_n1c3h17w17_k8r5s1_st2x2_pad2x0_dil1x1_g1",
    "fwd_{}_n2c1h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_{}_n2c8h1w1_k4r1s1_st1x1_pad0x0_dil1x1_g1",
    "fwd_{}_n1c7h9w9_k1r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_{}_n2c6h1w20_k4r1s5_st1x2_pad0x2_dil1x1_g2",
    "fwd_{}_n1c4d5h7w7_k6t3r3s3_st1x2x2_pad1x1x1_dil1x1x1_g2",
    "bwd_data_{}_n1c8h14w14_k16r3s3_st2x2_pad1x1_dil1x1_g1",
    "bwd_data_{}_n2c8h9w10_k4r4s2_st2x3_pad1x0_dil1x1_g2",
    "bwd_data_{}_n1c4h8w8_k4r3s3_st1x1_pad1x1_dil2x2_g1",
    "bwd_data_{}_n1c4d6h8w8_k4t3r3s3_st2x2x2_pad1x1x1_dil1x1x1_g1",
    "bwd_filter_{}_n2c8h14w13_k16r3s3_st2x1_pad1x0_dil1x1_g1",
    "bwd_filter_{}_n1c8h9w9_k8r3s3_st1x1_pad2x2_dil2x2_g8",
    "bwd_filter_{}_n2c1h8w8_k4r1s1_st1x1_pad0x0_dil1x1_g1",
    "bwd_filter_{}_n1c4d5h7w7_k6t3r3s3_st1x2x2_pad1x1x1_dil1x1x1_g2",
    "maxpool_{}_n2c5h13w12_r3s3_st2x2_pad1x1_dil1x1",
    "maxpool_{}_n1c5h13w12_r3s2_st2x2_pad0x0_dil1x2_ceil",
    "avgpool_{}_n2c5h13w12_r3s3_st2x2_pad1x1",
    "avgpool_{}_n2c5h13w12_r3s3_st2x2_pad1x1_ceil_exclpad",
    "avgpool_{}_n2c5h13w12_p1q1",
    "avgpool_{}_n2c5h13w12_p3q5",
    "relu_{}_n2c5h7w6",
    "relu6_{}_n2c5h7w6",
    "hardswish_{}_n2c5h7w6",
    "silu_{}_n2c5h7w6",
    "sigmoid_{}_n2c5h1w1",
    "hardsigmoid_{}_n2c1h7w6",
    "gelu_{}_n2c1h7w6",
    "gelu_tanh_{}_n2c1h7w6",
    "mish_{}_n2c5h7w6",
    "tanh_{}_n2c5h7w6",
    "elu0.5_{}_n2c5h7w6",
    "leaky_relu0.1_{}_n2c5h7w6",
    "clamp-1x2.5_{}_n2c5h7w6",
    "add_{}_n2c5h7w6",
    "add_{}_n2c5h7w6_channelwise+relu",
    "mul_{}_n2c5h7w6+hardswish",
    "mul_{}_n2c5h7w6_channelwise",
    "mul_{}_n2c1h7w6_channelwise",
    "scaleshift_{}_n2c5h7w6",
    "scaleshift_{}_n2c1h7w6",
    "layernorm_{}_n2c5h7w6_eps1e-05",
    "rmsnorm_{}_n2c5h7w6_eps1e-05",
    "variancenorm_{}_n2c5h7w6_eps1e-05",
    "groupnorm_{}_n2c6h7w6_g3_eps1e-05",
    "groupnorm_{}_n2c6h7w6_g1_eps1e-05",
    "groupnorm_{}_n2c6h7w6_g6_eps0.1",
    "groupnorm_{}_n2c1h7w6_g1_eps1e-05",
    "groupnorm_{}_n2c6h1w1_g2_eps1e-05",
    "moments_{}_n2c5h7w6",
    "normalize_{}_n2c5h7w6_eps1e-05",
    "bwd_normalize_sums_{}_n2c5h7w6_eps1e-05",
    "bwd_normalize_{}_n2c5h7w6_eps1e-05",
    "bwd_normalize_sums_{}_n2c5h7w6_eps1e-05+relu",
    "bwd_normalize_{}_n2c5h7w6_eps1e-05+silu",
    "channelsums_{}_n2c5h7w6",
    "channelsums_{}_n2c5h7w6_perimage",
    "channelsums_{}_n2c5h7w6_perimage_product",
    "bwd_avgpool_{}_n2c5h7w6_r3s3_st2x2_pad1x1",
    "bwd_relu_{}_n2c5h7w6",
    "bwd_relu6_{}_n2c5h7w6",
    "bwd_hardswish_{}_n2c5h7w6",
    "bwd_silu_{}_n2c5h7w6",
    "bwd_sigmoid_{}_n2c5h7w6",
    "bwd_hardsigmoid_{}_n2c5h7w6",
    "bwd_gelu_{}_n2c5h7w6",
    "bwd_gelu_tanh_{}_n2c5h7w6",
    "bwd_mish_{}_n2c5h7w6",
    "bwd_tanh_{}_n2c5h7w6",
    "bwd_elu0.5_{}_n2c5h7w6",
    "bwd_leaky_relu0.1_{}_n2c5h7w6",
    "bwd_clamp-1x2.5_{}_n2c5h7w6",
    "bwd_maxpool_{}_n1c5h13w12_r3s2_st2x2_pad0x0_dil1x2_ceil",
    "bwd_avgpool_{}_n2c5h13w12_r3s3_st2x2_pad1x1_ceil_exclpad",
    "bwd_avgpool_{}_n2c5h13w12_p3q5",
    "concat_{}_n2c5x3x1h7w6",
    "concat_{}_n2c1x1h1w1",
    "nearest_{}_n2c5h7w6_p14q9",
    "nearest_{}_n2c5h7w6_x2x3",
    "bilinear_{}_n2c5h7w6_p13q4",
    "bilinear_{}_n2c1h7w6_p13q4_align",
    "linear_{}_n3c20_k7",
};

const std::vector<const char*> kFusedProblems = {
    "fwd_{}_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias",
    "fwd_{}_n1c4d5h7w7_k6t3r3s3_st1x2x2_pad1x1x1_dil1x1x1_g2+bias",
    "bwd_data_{}_n1c8h14w14_k16r3s3_st2x2_pad1x1_dil1x1_g1+bias",
    "linear_{}_n3c20_k7+bias",
};

const std::vector<const char*> kPrepackedProblems = {
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n2c16h15w13_k24r3s3_st2x1_pad1x0_dil1x2_g4+bias",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+relu",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu6",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+hardswish",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+silu",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+sigmoid",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+hardsigmoid",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+leaky_relu0.1",
    "fwd_f32_n2c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1+add",
    "fwd_f32_n2c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias+add",
    "fwd_f32_n2c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g16+bias+add+relu",
    "fwd_f32_n2c16h1w1_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
    "fwd_f32_n2c16h5w5_k1r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
    "fwd_f32_n2c1h5w1_k4r1s1_st1x1_pad0x0_dil1x1_g1+bias+add+relu",
    "fwd_f32_n1c2h28w3_k1r3s3_st1x2_pad0x0_dil1x1_g1",
    "fwd_f32_n1c1h28w5_k4r3s3_st1x2_pad0x0_dil1x1_g1",
};

double max_rel_error(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-14;
    case DType::kF32:
    case DType::kTf32:
      return 1e-6;
    case DType::kF16:
      return 2e-3;
    case DType::kBf16:
      return 1e-2;
  }
  return 0;
}

at::Tensor run_in_layouts(const Algorithm& row, const Problem& problem, const Primitive& primitive,
                          const Sample& sample) {
  std::vector<at::Tensor> src;
  for (std::size_t i = 0; i < sample.src.size(); ++i) {
    src.push_back(to_layout(sample.src[i], input_layout(problem, primitive, i)));
  }
  at::Tensor residual;
  if (sample.residual.defined()) {
    residual = to_layout(sample.residual, result_layout(problem, primitive));
  }
  const Kernel kernel = row.prepare(problem, primitive, cpu_device());
  return kernel.run({pack(kernel, sample.weights), src, residual, {}, nullptr});
}

void expect_equals_reference(const Algorithm& row, const Problem& problem,
                             const Primitive& primitive) {
  SCOPED_TRACE(to_string(problem) + " " + to_string(primitive));
  const Sample sample = make_sample(problem, 7);
  const at::Tensor dst = run_in_layouts(row, problem, primitive, sample);
  const at::Tensor reference = reference_result(problem, sample);
  ASSERT_EQ(dst.sizes(), reference.sizes());
  EXPECT_EQ(dst.scalar_type(), scalar_type(dtype_of(problem)));
  EXPECT_EQ(dst.strides(),
            at::IntArrayRef(dense_strides(dst.sizes(), result_layout(problem, primitive))));
  const double error = (dst.to(at::kDouble) - reference).norm().item<double>();
  EXPECT_LE(error, max_rel_error(dtype_of(problem)) * reference.norm().item<double>());
}

// Layouts in which the rows that offer `problem` are right.
std::set<std::string> check_all_offers(const Problem& problem) {
  std::set<std::string> layouts;
  for (const Algorithm& row : aten_algorithms()) {
    const Offer offer = row.offer(problem, Device());
    EXPECT_NE(offer.primitives.empty(), offer.refusal.empty()) << row.name;
    for (const Primitive& primitive : offer.primitives) {
      EXPECT_TRUE(matches_name(primitive.name, row.name));
      expect_equals_reference(row, problem, primitive);
      layouts.insert(fmt::format("{}->{}", to_string(primitive.src), to_string(primitive.dst)));
    }
  }
  return layouts;
}

class AtenRows : public testing::TestWithParam<const char*> {
  const at::NoGradGuard no_grad_;
};

TEST_P(AtenRows, OfferEveryProblemInBothStridedLayoutsAndEqualF64) {
  for (const std::vector<const char*>& table : {kProblems, kFusedProblems}) {
    for (const char* text : table) {
      const Problem problem = parse_problem(fmt::format(fmt::runtime(text), GetParam()));
      const std::set<std::string> both = {"nchw->nchw", "nhwc->nhwc"};
      const std::set<std::string> one = {"nchw->nchw"};
      const bool is_linear = std::holds_alternative<LinearProblem>(problem);
      EXPECT_EQ(check_all_offers(problem), is_linear ? one : both) << to_string(problem);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, AtenRows, testing::Values("f64", "f32", "tf32", "f16", "bf16"),
                         [](const auto& param) { return std::string(param.param); });

// A variance as the mean of squares less the square of the mean has no correct digit here.
// The rows that are listed only where bf16 is fast. They are slow elsewhere, and as exact.
TEST(AtenRows, AgreeWithF64InBf16) {
  Device device = cpu_device();
  device.bf16_isa = "amx";
  std::set<std::string> checked;
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(fmt::format(fmt::runtime(text), "f32"));
    for (const Algorithm& algorithm : aten_algorithms()) {
      Offer offer = algorithm.offer(problem, device);
      std::erase_if(offer.primitives, [](const Primitive& each) { return !is_typed(each.src); });
      const auto results =
          check_primitives({algorithm}, problem, offer.primitives, /*max_rel_error=*/1e-5,
                           /*seed=*/0, device);
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].failure, "") << to_string(offer.primitives[i]) << " " << text;
        checked.insert(std::string(text).substr(0, std::string(text).find("_{}")));
      }
    }
  }
  for (const char* kind : {"bwd_data", "bwd_filter", "bwd_maxpool", "bwd_avgpool", "add", "relu"})
    EXPECT_TRUE(checked.contains(kind)) << kind;
}

TEST(AtenRows, NormsAreRightWhereTheMeanIsLarge) {
  const at::NoGradGuard no_grad;
  for (const char* text :
       {"groupnorm_f32_n2c32h9w9_g8_eps1e-05", "groupnorm_f32_n2c32h9w9_g32_eps1e-05",
        "groupnorm_f32_n2c32h9w9_g1_eps1e-05", "layernorm_f32_n2c32h9w9_eps1e-05",
        "variancenorm_f32_n2c32h9w9_eps1e-05"}) {
    const Problem problem = parse_problem(text);
    const Sample sample = make_sample(problem, 1, at::kCPU, 1000);
    const at::Tensor expected = reference_result(problem, sample);
    for (const Algorithm& row : aten_algorithms()) {
      for (const Primitive& primitive : row.offer(problem, Device()).primitives) {
        const at::Tensor dst = run_in_layouts(row, problem, primitive, sample);
        EXPECT_LE((dst - expected).norm().item<double>(), 1e-3 * expected.norm().item<double>())
            << to_string(primitive) << " " << text;
      }
    }
  }
}

TEST(AtenPrepacked, EqualsF64WithEveryEpilogueItOffers) {
  const at::NoGradGuard no_grad;
  const Algorithm* row = find_algorithm(aten_algorithms(), "aten.prepacked");
  ASSERT_NE(row, nullptr);
  for (const char* text : kPrepackedProblems) {
    const Problem problem = parse_problem(text);
    const Offer offer = row->offer(problem, Device());
    ASSERT_EQ(offer.primitives.size(), 1U) << text << ": " << offer.refusal;
    expect_equals_reference(*row, problem, offer.primitives[0]);
  }
}

TEST(AtenPrepacked, LeavesTheResidualAsItIs) {
  const at::NoGradGuard no_grad;
  const Algorithm* row = find_algorithm(aten_algorithms(), "aten.prepacked");
  const Problem problem =
      parse_problem("fwd_f32_n2c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu");
  const Primitive primitive = row->offer(problem, Device()).primitives.at(0);
  Sample sample = make_sample(problem, 3);
  sample.residual = to_strided(sample.residual, Layout::kNhwc);
  const at::Tensor before = sample.residual.clone();
  static_cast<void>(run_in_layouts(*row, problem, primitive, sample));
  EXPECT_TRUE(sample.residual.equal(before));
}

TEST(AtenRowsThatPackForAllSizes, AreRightOnOtherSizesThanPackedFor) {
  const at::NoGradGuard no_grad;
  const auto expect_serves = [](const char* packed_for, const char* run_on) {
    const Problem first = parse_problem(packed_for), second = parse_problem(run_on);
    for (const Algorithm& row : aten_algorithms()) {
      for (const Primitive& primitive : row.offer(first, Device()).primitives) {
        if (row.prepare(first, primitive, cpu_device()).packing.empty()) continue;
        const Sample sample = make_sample(second, 5);
        const Packed packed = pack(row.prepare(first, primitive, cpu_device()), sample.weights);
        std::vector<at::Tensor> src = {to_layout(sample.src[0], primitive.src)};
        const at::Tensor dst =
            row.prepare(second, primitive, cpu_device()).run({packed, src, {}, {}, nullptr});
        EXPECT_TRUE(dst.to(at::kDouble).allclose(reference_result(second, sample), 1e-4, 1e-4))
            << primitive.name << " packed for " << packed_for << ", run on " << run_on;
      }
    }
  };
  expect_serves("fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias",
                "fwd_f32_n3c64h7w11_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias");
  expect_serves("fwd_f32_n1c32h5w5_k32r3s3_st1x1_pad1x1_dil1x1_g32+bias",
                "fwd_f32_n2c32h40w31_k32r3s3_st1x1_pad1x1_dil1x1_g32+bias");
  expect_serves("bwd_data_f32_n1c8h14w14_k16r3s3_st2x2_pad1x1_dil1x1_g1",
                "bwd_data_f32_n2c8h18w6_k16r3s3_st2x2_pad1x1_dil1x1_g1");
  expect_serves("scaleshift_f32_n1c8h14w14", "scaleshift_f32_n4c8h3w1");
  expect_serves("layernorm_f32_n1c8h14w14_eps1e-06", "layernorm_f32_n4c8h3w1_eps1e-06");
  expect_serves("groupnorm_f32_n1c8h14w14_g2_eps1e-06", "groupnorm_f32_n4c8h3w1_g2_eps1e-06");
  expect_serves("linear_f32_n1c8_k5+bias", "linear_f32_n7c8_k5+bias");
}

TEST(AtenAttention, EqualsF64) {
  const at::NoGradGuard no_grad;
  const Algorithm& row = *find_algorithm(aten_algorithms(), "aten.attention");
  for (const char* text :
       {"attention_f32_n2h3q9k7d8w5_bias3x1x7", "attention_f64_n2q9k7d8w5_scale0.3",
        "linearattention_f32_n2h3q9k7d8w5_eps0.1"}) {
    const Problem problem = parse_problem(text);
    expect_equals_reference(row, problem, row.offer(problem, Device()).primitives.at(0));
  }
}

TEST(AtenRows, PackWhereTheWeightsAre) {
  const Problem problem = parse_problem("scaleshift_f32_n2c5h7w6");
  const Algorithm& row = *find_algorithm(aten_algorithms(), "aten.scale_shift");
  const Primitive primitive = row.offer(problem, cpu_device()).primitives.at(0);
  const at::Tensor weights = at::empty({5}, at::TensorOptions(at::kMeta));
  const Packed packed = row.prepare(problem, primitive, cpu_device()).pack({{weights, {}}});
  ASSERT_EQ(packed.size(), 2U);
  for (const auto& [first, second] : packed) {
    EXPECT_TRUE(first.is_meta());
    EXPECT_TRUE(second.is_meta());
  }
}

TEST(AtenRows, RefuseWithAReason) {
  const auto refusal = [](const char* row, const char* problem) {
    const Algorithm* algorithm = find_algorithm(aten_algorithms(), row);
    return algorithm->offer(parse_problem(problem), Device()).refusal;
  };
  const std::string conv = "fwd_f32_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1";
  const std::string chain =
      "chain_f32_n1c8h8w8_k8r1s1_st1x1_pad0x0_dil1x1_g1_k8r3s3_st1x1_pad1x1_dil1x1_g8";
  const std::string relu = "relu_f32_n1c8h8w8";
  const std::tuple<const char*, std::string, const char*> kCases[] = {
      {"aten.attention", relu, "runs attention only"},
      {"aten.batch_norm", relu, "runs steps of batch norms only"},
      {"aten.bwd_activation", relu, "runs gradients of activations only"},
      {"aten.bwd_pool", relu, "runs gradients of poolings only"},
      {"aten.channel_sums", relu, "runs sums of channels only"},
      {"aten.concat", relu, "runs concatenations only"},
      {"aten.conv", relu, "runs convolutions only"},
      {"aten.conv_chain", relu, "runs chains only"},
      {"aten.eltwise", conv, "runs element-wise operations only"},
      {"aten.group_norm", relu, "runs group norms only"},
      {"aten.layer_norm", relu, "runs norms over channels only"},
      {"aten.linear", relu, "runs linear layers only"},
      {"aten.pixel_shuffle", relu, "runs pixel shuffles only"},
      {"aten.pool", relu, "runs poolings only"},
      {"aten.prepacked", relu, "runs convolutions only"},
      {"aten.resize", relu, "runs resizes only"},
      {"aten.scale_shift", relu, "runs x * scale + shift only"},
      {"aten.shuffle", relu, "runs channel shuffles only"},
      {"aten.slice", relu, "runs slices only"},
      {"cpu.fft", relu, "needs a convolution"},
      {"aten.batch_norm", "normalize_f32_n8c64h56w56_eps1e-05+relu",
       "applies nothing to its result"},
      {"aten.conv", conv + "+bias+relu", "ATen convolution fuses only the bias"},
      {"aten.conv_chain", chain + "+add", "fuses no residual"},
      {"aten.eltwise", "add_f32_n1c8h8w8+bias", "takes activations as its epilogue"},
      {"aten.group_norm", "groupnorm_f32_n1c8h8w8_g2_eps1e-05+silu",
       "ATen fuses nothing after a group norm"},
      {"aten.linear", "linear_f32_n1c8_k8+bias+relu", "ATen linear fuses only the bias"},
      {"aten.prepacked", "bwd_data_f32_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1", "forward only"},
      {"aten.prepacked", "fwd_f32_n1c3d8h8w8_k4t3r3s3_st1x1x1_pad1x1x1_dil1x1x1_g1", "2-D only"},
      {"aten.prepacked", "fwd_bf16_n1c8h8w8_k8r3s3_st1x1_pad1x1_dil1x1_g1", "needs f32"},
      {"aten.prepacked", "fwd_f32_n2c8h9w9_k8r3s3_st2x2_pad0x0x1x1_dil1x1_g1",
       "needs as many zeros before the image as after it"},
      {"aten.prepacked", conv + "+relu+bias", "fuses bias, add and activation in this order only"},
      {"aten.prepacked", conv + "+bias+add+silu", "after an add it fuses relu only"},
      {"aten.prepacked", "fwd_f32_n2c8h5w5_k1r1s1_st1x1_pad0x0_dil1x1_g1+add",
       "adds no residual of one channel or one pixel"},
      {"aten.prepacked", "fwd_f32_n2c8h1w1_k8r1s1_st1x1_pad0x0_dil1x1_g1+add",
       "adds no residual of one channel or one pixel"},
      {"aten.prepacked", "fwd_f32_n1c1h28w3_k1r3s3_st1x2_pad0x0_dil1x1_g1",
       "reads no image of one channel with a stride to one column"},
      {"aten.scale_shift", "scaleshift_f32_n1c8h8w8+relu",
       "ATen fuses nothing after x * scale + shift"},
  };
  for (const auto& [row, problem, reason] : kCases)
    EXPECT_EQ(refusal(row, problem.c_str()), reason) << row << " " << problem;
  EXPECT_EQ(
      find_algorithm(aten_algorithms(), "aten.eltwise")->offer(EltwiseProblem(), Device()).refusal,
      "needs exactly one activation");
}

}  // namespace
}  // namespace torchalgo
