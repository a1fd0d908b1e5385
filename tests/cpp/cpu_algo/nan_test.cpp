// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/isnan.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <string>

#include "cpu_algo/conv_row.h"
#include "cpu_algo/kernels/winograd.h"
#include "cpu_algo/list.h"
#include "cpu_algo/rows.h"
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
    "concat_f32_n1c20x13h9w9",
    "concat_f32_n1c20x20h9w9_shuffle2",
    "slice_f32_n1c40h9w9_k20from15",
    "shuffle_f32_n1c64h9w9_g2",
    "nearest_f32_n1c20h9w9_x2x2",
    "bilinear_f32_n1c20h9w9_p13q13",
    "linear_f32_n2c100_k37+bias+relu",
};

// The NaN lies in the first image, in the middle of it and of the channels.
Sample with_nan(const Problem& problem) {
  Sample sample = make_sample(problem, 3);
  at::Tensor place = sample.src[0][0];
  place = place.select(0, place.size(0) / 2);
  while (place.dim() > 0) place = place.select(0, place.size(0) / 2);
  place.fill_(std::numeric_limits<float>::quiet_NaN());
  return sample;
}

// How far from a NaN, in rows and columns, a row may make results NaN that are none in PyTorch: all
// of each tile that reads it. Nothing: nowhere.
struct Reach {
  std::int64_t h, w;
};
std::optional<Reach> reach_of(const Algorithm& row, const Primitive& primitive) {
  if (row.name == "cpu.fft") {
    const std::int64_t reach = cpu::variant_number(primitive) - 1;
    return Reach{reach, reach};
  }
  for (std::size_t i = 0; i < std::size(kernels::kWinogradTiles); ++i) {
    const kernels::WinogradTile& tile = kernels::kWinogradTiles[i];
    if (row.name == cpu::winograd(static_cast<int>(i)).name)
      return Reach{tile.h.size() - 1, tile.w.size() - 1};
  }
  return std::nullopt;
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
  std::int64_t primitives = 0, winograd = 0, strassen = 0;
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    const Sample sample = with_nan(problem);
    const at::Tensor expected = at::isnan(reference_result(problem, sample));
    ASSERT_TRUE(expected.any().item<bool>()) << text;
    for (const Algorithm& row : cpu_algorithms()) {
      for (const Primitive& primitive : row.offer(problem, cpu_device()).primitives) {
        const std::string what = to_string(primitive) + " " + text;
        const at::Tensor found = at::isnan(run_once(row, problem, primitive, sample));
        EXPECT_FALSE(expected.logical_and(found.logical_not()).any().item<bool>())
            << what << " loses a NaN";
        const at::Tensor more = found.logical_and(expected.logical_not());
        const bool is_winograd = primitive.name.find("winograd") != std::string::npos;
        const bool is_strassen = primitive.name.find("strassen") != std::string::npos;
        if (const auto reach = reach_of(row, primitive)) {
          expect_near_the_middle(more, *reach, what);
        } else if (is_strassen) {
          expect_one_pixel(more, what);
        } else {
          EXPECT_FALSE(more.any().item<bool>()) << what << " spreads a NaN";
        }
        ++primitives;
        winograd += is_winograd ? 1 : 0;
        strassen += is_strassen ? 1 : 0;
      }
    }
  }
  EXPECT_GT(primitives, 80);
  EXPECT_GT(winograd, 4);
  EXPECT_GT(strassen, 2);
}

}  // namespace
}  // namespace torchalgo
