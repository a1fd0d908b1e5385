// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "all_algorithms.h"
#include "base/error.h"
#include "profiler/check.h"
#include "provider/cpu_device.h"
#include "provider/find_candidates.h"

namespace torchalgo {
namespace {

// A plain sum of n terms errs by at most n units of rounding, and by few of them on average.
constexpr double kPlainSum = 2e-6;

// Filters for which each kind of algorithm is offered: 1x1, along one axis, 3x3 with both strides,
// 5x5 and 7x7, grouped ones, and the three directions.
const char* const kProblems[] = {
    "fwd_f32_n1c64h14w14_k64r1s1_st1x1_pad0x0_dil1x1_g1",
    "fwd_f32_n1c32h17w19_k32r1s3_st1x1_pad0x1_dil1x1_g1",
    "fwd_f32_n1c32h16w18_k48r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n1c32h16w18_k32r3s3_st2x2_pad1x1_dil1x1_g1",
    "fwd_f32_n1c32h16w18_k32r3s3_st1x1_pad1x1_dil1x1_g32",
    "fwd_f32_n1c32h16w18_k32r3s3_st1x1_pad1x1_dil1x1_g2",
    "fwd_f32_n1c16h20w20_k16r5s5_st1x1_pad2x2_dil1x1_g1",
    "fwd_f32_n1c16h20w20_k16r7s7_st1x1_pad3x3_dil1x1_g1",
    "bwd_data_f32_n1c32h16w18_k48r3s3_st1x1_pad1x1_dil1x1_g1",
    "bwd_data_f32_n1c32h16w18_k48r1s1_st2x2_pad0x0_dil1x1_g1",  // some results have no terms
    "bwd_filter_f32_n1c32h16w18_k48r3s3_st1x1_pad1x1_dil1x1_g1",
};

TEST(ComponentwiseError, IsThatOfAPlainSumUnlessTheAlgorithmTransformsItsInputs) {
  int transformed = 0;
  for (const char* const spelling : kProblems) {
    const Problem problem = parse_problem(spelling);
    const ProblemOffers offers = offers_of(problem, all_algorithms(), cpu_device());
    for (std::size_t i = 0; i < offers.primitives.size(); ++i) {
      const Primitive& primitive = offers.primitives[i];
      const double error = componentwise_error(all_algorithms(), problem, primitive);
      const bool is_plain = transform_of(offers.traits[i]).empty();
      SCOPED_TRACE(fmt::format("{} {}: {:.2e}", spelling, to_string(primitive), error));
      if (is_plain) {
        EXPECT_LT(error, kPlainSum);
      }
      transformed += static_cast<int>(error >= kPlainSum);
    }
  }
  EXPECT_GT(transformed, 20);
}

TEST(ComponentwiseError, ShowsWhatANormOverAllResultsDoesNot) {
  const Problem problem = parse_problem(kProblems[2]);
  const Primitive winograd = {"cpu.winograd_f4x4_3x3.t14", Layout::kNChw16c, Layout::kNChw16c};
  EXPECT_GT(componentwise_error(all_algorithms(), problem, winograd), 1e-5);
  EXPECT_LT(check_primitives(all_algorithms(), problem, {winograd}, 1e-5)[0].rel_error, 2e-6);
}

TEST(ComponentwiseError, RefusesWhatNoAlgorithmOffers) {
  const Problem problem = parse_problem(kProblems[0]);
  EXPECT_THROW((void)componentwise_error(all_algorithms(), problem,
                                         {"cpu.none", Layout::kNchw, Layout::kNchw}),
               Error);
  EXPECT_THROW(
      (void)componentwise_error(all_algorithms(), problem,
                                {"cpu.winograd_f4x4_3x3.t14", Layout::kNChw16c, Layout::kNChw16c}),
      Error);
}

}  // namespace
}  // namespace torchalgo
