// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "all_algorithms.h"
#include "cpu_algo/kernels/winograd.h"
#include "cpu_algo/padded_tensors.h"
#include "cpu_algo/row_check.h"
#include "profiler/check.h"
#include "provider/algorithm.h"

namespace torchalgo {
namespace {

const char* const kProblems[] = {
    "fwd_f32_n1c24h9w9_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
    "fwd_f32_n2c72h9w9_k72r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
    "fwd_f32_n2c20h12w12_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu6",
    "fwd_f32_n1c16h30w30_k32r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
    "fwd_f32_n1c16h15w15_k24r3s3_st2x2_pad1x1_dil1x1_g1+bias+hardswish",
    "fwd_f32_n1c16h15w15_k24r5s5_st1x1_pad2x2_dil1x1_g1",
    "fwd_f32_n1c16h15w15_k24r1s7_st1x1_pad0x3_dil1x1_g1+bias+silu",
    "fwd_f32_n1c16h15w15_k16r3s3_st1x1_pad2x2_dil2x2_g1",
    "fwd_f32_n2c4h40w40_k4r9s9_st1x1_pad4x4_dil1x1_g1",
    "fwd_f32_n2c20h15w15_k20r7s7_st1x1_pad3x3_dil1x1_g20+bias",
    "fwd_f32_n1c3h20w20_k16r3s3_st2x2_pad1x1_dil1x1_g1+bias+hardswish",
    "fwd_f32_n1c40h15w15_k40r3s3_st1x1_pad1x1_dil1x1_g5+bias+relu",
    "fwd_f32_n1c64h9w9_k64r3s3_st1x1_pad1x1_dil1x1_g2+bias",
    "fwd_f32_n1c24h15w15_k24r3s3_st1x1_pad1x1_dil1x1_g24+bias+relu6",
    "fwd_f32_n1c24h15w15_k24r5s5_st2x2_pad2x2_dil1x1_g24+bias+hardswish",
    "bwd_data_f32_n1c24h9w9_k16r3s3_st1x1_pad1x1_dil1x1_g1",
    "chain_f32_n1c16h12w12_k48r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu6"
    "_k48r3s3_st1x1_pad1x1_dil1x1_g48+bias+relu6_k16r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
    "chain_f32_n2c24h7w7_mul_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
    "chain_f32_n2c24h7w7_scaleshift+relu_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
    "chain_f32_n2c64h7w7_mul_k72r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
    "chain_f32_n2c24h7w7_avgpool_k8r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu"
    "_k24r1s1_st1x1_pad0x0_dil1x1_g1+bias+hardsigmoid",
    "maxpool_f32_n1c20h9w9_r3s3_st2x2_pad1x1_dil1x1",
    "avgpool_f32_n1c20h9w9_r3s3_st2x2_pad1x1",
    "avgpool_f32_n1c20h9w9_p1q1",
    "add_f32_n1c20h9w9+relu",
    "mul_f32_n1c20h9w9_channelwise",
    "silu_f32_n1c20h9w9",
    "scaleshift_f32_n1c20h9w9+relu",
    "layernorm_f32_n1c20h9w9_eps1e-05",
    "rmsnorm_f32_n1c20h9w9_eps1e-05",
    "variancenorm_f32_n1c20h9w9_eps1e-05",
    "groupnorm_f32_n3c20h9w9_g20_eps1e-05+silu",
    "moments_f32_n2c20h9w9",
    "normalize_f32_n2c20h9w9_eps1e-05",
    "bwd_normalize_sums_f32_n2c20h9w9_eps1e-05",
    "bwd_normalize_f32_n2c20h9w9_eps1e-05",
    "bwd_normalize_sums_f32_n2c20h9w9_eps1e-05+clamp-1000x1000",
    "bwd_normalize_f32_n2c20h9w9_eps1e-05+clamp-1000x1000",
    "channelsums_f32_n2c20h9w9",
    "channelsums_f32_n2c20h9w9_perimage_product",
    "bwd_avgpool_f32_n2c20h9w9_r3s3_st2x2_pad1x1",
    "normalize_f32_n2c20h9w9_eps1e-05+add+relu",
    "bwd_maxpool_f32_n2c20h9w9_r3s3_st2x2_pad1x1_dil1x1",
    "concat_f32_n1c20x13h9w9",
    "concat_f32_n1c20x20h9w9_shuffle2",
    "slice_f32_n1c40h9w9_k20from15",
    "shuffle_f32_n1c64h9w9_g2",
    "nearest_f32_n1c20h9w9_x2x2",
    "bilinear_f32_n1c20h9w9_p13q13",
    "linear_f32_n2c100_k37+bias+relu",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+relu",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+sigmoid",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+hardsigmoid",
    "fwd_f32_n2c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias+add",
    "fwd_f32_n2c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g16+bias+add+relu",
    "fwd_f32_n1c48h1w1_k12r1s1_st1x1_pad0x0_dil1x1_g1+bias+hardsigmoid",
    "fwd_f64_n1c8h9w9_k8r3s3_st1x1_pad1x1_dil1x1_g1+bias",
    "fwd_f32_n1c4d5h7w7_k6t3r3s3_st1x2x2_pad1x1x1_dil1x1x1_g2+bias",
    "bwd_filter_f32_n2c8h9w9_k16r3s3_st1x1_pad1x1_dil1x1_g1",
    "relu_f32_n1c20h9w9",
    "relu6_f32_n1c20h9w9",
    "hardswish_f32_n1c20h9w9",
    "sigmoid_f32_n1c20h9w9",
    "hardsigmoid_f32_n1c20h9w9",
    "gelu_f32_n1c20h9w9",
    "gelu_tanh_f32_n1c20h9w9",
    "mish_f32_n1c20h9w9",
    "tanh_f32_n1c20h9w9",
    "elu1_f32_n1c20h9w9",
    "leaky_relu0.1_f32_n1c20h9w9",
    "clamp-1x1_f32_n1c20h9w9",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+leaky_relu0.1",
    "fwd_f32_n1c16h14w14_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+clamp-1x1",
    "add_f32_n1c20h9w9+relu6",
    "mul_f32_n1c20h9w9+hardswish",
    "bilinear_f32_n1c20h9w9_p13q13_align",
    "bilinear_f32_n1c20h9w9_p1q9",
    "bilinear_f32_n1c20h9w9_p9q13_align",
    "transform_f32_n1c20h9w9_nchw_nChw16c",
    "transform_f32_n1c20h9w9_nChw16c_nhwc",
    "transform_f32_n1c20h9w9_nhwc_nchw",
    "transform_f32_n1c20h1w1_nchw_nhwc",
};

// What the first of a problem's inputs holds in one place, the middle of the first image.
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Sample with_value(const Problem& problem, float value) {
  Sample sample = make_sample(problem, 3);
  at::Tensor place = sample.src[0][0];
  place = place.select(0, place.size(0) / 2);
  while (place.dim() > 0) place = place.select(0, place.size(0) / 2);
  place.fill_(value);
  return sample;
}

struct Case {
  const Algorithm& algorithm;
  Primitive primitive;
  std::string what;
};

void visit_offers(const Algorithm& algorithm, const Problem& problem, const std::string& build,
                  const std::function<void(const Case&)>& visit) {
  for (const Primitive& primitive : algorithm.offer(problem, cpu_device()).primitives) {
    visit({algorithm, primitive, to_string(primitive) + " " + to_string(problem) + build});
  }
}

// Calls `visit` for each primitive that any provider offers on a CPU, and for each build of our own
// kernels that runs on this machine.
void for_each_primitive(const Problem& problem, const std::function<void(const Case&)>& visit) {
  for (const Algorithm& algorithm : all_algorithms()) {
    if (algorithm.runs_on_cpu) visit_offers(algorithm, problem, "", visit);
  }
  for (const std::string& isa : isas()) {
    if (isa == cpu_device().isa) continue;
    for (const Algorithm& algorithm : cpu_algorithms(isa))
      visit_offers(algorithm, problem, " in the " + isa + " build", visit);
  }
}

bool is_any(const at::Tensor& mask) { return mask.any().item<bool>(); }

// How far from a NaN, in rows and columns, an algorithm may make results NaN that are none in
// PyTorch: all of each tile that reads it. Nothing: nowhere.
struct Reach {
  std::int64_t h, w;
};
std::optional<Reach> reach_of(const Case& run) {
  if (run.algorithm.name == "cpu.fft") {
    const std::int64_t reach = cpu::variant_number(run.primitive) - 1;
    return Reach{reach, reach};
  }
  // All taps of a gradient with respect to weights lie within a NaN's reach.
  if (run.algorithm.name == "cpu.winograd_f3x3_4x4") return Reach{2, 2};
  for (const kernels::WinogradTile& tile : kernels::kWinogradTiles) {
    const std::string name = fmt::format("cpu.winograd_f{}x{}_{}x{}{}", tile.h.m, tile.w.m,
                                         tile.h.r, tile.w.r, tile.h.stride == 2 ? "s2" : "");
    if (run.algorithm.name.starts_with(name)) return Reach{tile.h.size() - 1, tile.w.size() - 1};
  }
  return std::nullopt;
}

bool is_strassen(const Case& run) {
  return run.primitive.name.find("strassen") != std::string::npos;
}

void expect_near_the_middle(const at::Tensor& more, const Reach& reach, const std::string& what) {
  const at::Tensor places = more.nonzero();  // [count, 4]
  for (std::int64_t i = 0; i < places.size(0); ++i) {
    EXPECT_EQ(places[i][0].item<std::int64_t>(), 0) << what;
    for (const int axis : {2, 3}) {
      const std::int64_t middle = more.size(axis) / 2;
      EXPECT_LE(std::abs(places[i][axis].item<std::int64_t>() - middle),
                axis == 2 ? reach.h : reach.w)
          << what;
    }
  }
}

// Strassen's algorithm adds a pixel to one other.
void expect_one_pixel(const at::Tensor& more, const std::string& what) {
  EXPECT_LE(more.any(1).sum().item<std::int64_t>(), 1) << what;
}

TEST(Nan, IsNeverLostAndSpreadsAsDocumented) {
  const Threads one(1);
  std::int64_t primitives = 0, winograd = 0, strassen = 0;
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    const Sample sample = with_value(problem, kNan);
    const at::Tensor expected = at::isnan(reference_result(problem, sample));
    ASSERT_TRUE(is_any(expected)) << text;
    for_each_primitive(problem, [&](const Case& run) {
      const at::Tensor found = at::isnan(run_once(run.algorithm, problem, run.primitive, sample));
      EXPECT_FALSE(is_any(expected.logical_and(found.logical_not()))) << run.what << " loses a NaN";
      const at::Tensor more = found.logical_and(expected.logical_not());
      const std::optional<Reach> reach = reach_of(run);
      if (reach) {
        expect_near_the_middle(more, *reach, run.what);
      } else if (is_strassen(run)) {
        expect_one_pixel(more, run.what);
      } else {
        EXPECT_FALSE(is_any(more)) << run.what << " spreads a NaN";
      }
      ++primitives;
      winograd += reach ? 1 : 0;
      strassen += is_strassen(run) ? 1 : 0;
    });
  }
  EXPECT_GT(primitives, 200);
  EXPECT_GT(winograd, 4);
  EXPECT_GT(strassen, 2);
}

TEST(Nan, IsNeverLostInAnyLaneNorInTheResidual) {
  const Threads one(1);
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    Sample inputs = make_sample(problem, 3), residual = inputs;
    for (std::size_t i = 0; i < inputs.src.size(); ++i) inputs.src[i] = with_nans(inputs.src[i], i);
    if (residual.residual.defined()) residual.residual = with_nans(residual.residual, 0);
    for (const Sample& sample : {inputs, residual}) {
      const at::Tensor expected = at::isnan(reference_result(problem, sample));
      for_each_primitive(problem, [&](const Case& run) {
        const at::Tensor found = at::isnan(run_once(run.algorithm, problem, run.primitive, sample));
        EXPECT_FALSE(is_any(expected.logical_and(found.logical_not()))) << run.what;
      });
    }
  }
}

// Where PyTorch's result is an infinity or NaN, so is that of every algorithm; the same one, unless
// the algorithm subtracts elements of its input, which makes NaN of two infinities. GELU is not
// asked: PyTorch itself makes infinity a NaN in f32 and not in f64, and ours has its limits.
TEST(Infinity, StaysAnInfinityOrNan) {
  const Threads one(1);
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    if (std::string_view(text).starts_with("gelu")) continue;
    for (const float value : {kInfinity, -kInfinity}) {
      const Sample sample = with_value(problem, value);
      const at::Tensor expected = reference_result(problem, sample);
      for_each_primitive(problem, [&](const Case& run) {
        const at::Tensor found =
            run_once(run.algorithm, problem, run.primitive, sample).to(at::kDouble);
        const at::Tensor is_lost =
            at::isfinite(found).logical_and(at::isfinite(expected).logical_not());
        EXPECT_FALSE(is_any(is_lost)) << run.what << " loses " << value;
        if (reach_of(run) || is_strassen(run)) return;
        const at::Tensor differs =
            at::isnan(found)
                .ne(at::isnan(expected))
                .logical_or(found.eq(kInfinity).ne(expected.eq(kInfinity)))
                .logical_or(found.eq(-kInfinity).ne(expected.eq(-kInfinity)));
        EXPECT_FALSE(is_any(differs)) << run.what << " differs from PyTorch with " << value;
      });
    }
  }
}

}  // namespace
}  // namespace torchalgo
