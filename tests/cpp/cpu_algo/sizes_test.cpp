// SPDX-License-Identifier: BSD-3-Clause
// Walks sizes around the blocks of the kernels. A kernel is often wrong only for the sizes that
// leave one lane, one row or one part over.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "cpu_algo/kernels/batch_norm.h"
#include "cpu_algo/kernels/gemm_tile.h"
#include "cpu_algo/kernels/group_norm.h"
#include "cpu_algo/kernels/resize.h"
#include "cpu_algo/list.h"
#include "cpu_algo/row_check.h"
#include "profiler/check.h"

namespace torchalgo {
namespace {

constexpr double kBound = 1e-5;  // as optimize; most algorithms have smaller ones

// Returns the sizes from 1 to two blocks and one that are at most one from a multiple of `step`.
std::set<std::int64_t> sizes_around(std::int64_t block, std::int64_t step) {
  std::set<std::int64_t> sizes;
  for (std::int64_t at = 0; at <= 2 * block; at += step) {
    for (const std::int64_t size : {at - 1, at, at + 1}) {
      if (size > 0) sizes.insert(size);
    }
  }
  return sizes;
}

// Returns all sizes up to two blocks of channels and one, and those around the blocks that hold
// several of these.
std::set<std::int64_t> channel_counts() {
  constexpr std::int64_t kBlock = kernels::kTileBlock;
  std::set<std::int64_t> counts = sizes_around(kBlock, 1);
  for (const std::int64_t block : {kBlock * kernels::kMaxTileBlocks, kernels::kGroupNormStrip}) {
    counts.merge(sizes_around(block, kBlock));
  }
  return counts;
}

std::string with_size(std::string text, std::int64_t size) {
  for (auto at = text.find('#'); at != std::string::npos; at = text.find('#')) {
    text.replace(at, 1, std::to_string(size));
  }
  return text;
}

// Checks all primitives of the folder's algorithms that run the problem. Returns their number.
std::size_t check_all(const std::string& text, const std::string& isa) {
  const Problem problem = parse_problem(text);
  const Algorithms algorithms = prepared_algorithms(isa);
  std::vector<Primitive> primitives;
  for (const Algorithm& algorithm : algorithms) {
    const Offer offer = algorithm.offer(problem, device_with_bf16());
    primitives.insert(primitives.end(), offer.primitives.begin(), offer.primitives.end());
  }
  const auto results = check_primitives(algorithms, problem, primitives, kBound);
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].failure, "") << to_string(primitives[i]) << " " << text << " " << isa;
  }
  return primitives.size();
}

// Checks the problems of `texts`, in which # stands for the size.
void check_sizes(std::initializer_list<const char*> texts, const std::set<std::int64_t>& sizes) {
  for (const std::string& isa : isas()) {
    for (const char* text : texts) {
      std::size_t checked = 0;
      for (const std::int64_t size : sizes) checked += check_all(with_size(text, size), isa);
      EXPECT_GE(checked, sizes.size()) << text;
    }
  }
}

TEST(Sizes, SumsAndBatchNormsAreRightForAnyNumberOfChannels) {
  check_sizes(
      {"channelsums_f32_n2c#h3w2", "channelsums_f32_n2c#h3w2_perimage_product",
       "moments_f32_n2c#h3w2", "normalize_f32_n2c#h3w2_eps1e-05+add+relu",
       "bwd_normalize_sums_f32_n2c#h3w2_eps1e-05", "bwd_normalize_sums_f32_n2c#h3w2_eps1e-05+relu",
       "bwd_normalize_f32_n2c#h3w2_eps1e-05", "bwd_normalize_f32_n2c#h3w2_eps1e-05+relu"},
      channel_counts());
}

TEST(Sizes, NormsAreRightForAnyNumberOfChannels) {
  check_sizes({"layernorm_f32_n1c#h3w2_eps1e-05", "rmsnorm_f32_n1c#h3w2_eps1e-05",
               "groupnorm_f32_n2c#h3w3_g1_eps1e-05", "groupnorm_f32_n2c#h3w3_g#_eps1e-05+silu"},
              channel_counts());
}

TEST(Sizes, ConvolutionsAreRightForAnyNumberOfChannels) {
  check_sizes({"fwd_f32_n1c#h3w4_k3r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
               "fwd_f32_n1c3h3w4_k#r1s1_st1x1_pad0x0_dil1x1_g1+bias+add",
               "fwd_f32_n1c#h4w5_k17r3s3_st1x1_pad1x1_dil1x1_g1",
               "fwd_f32_n1c17h4w5_k#r3s3_st1x1_pad1x1_dil1x1_g1+bias+silu",
               "fwd_f32_n1c#h4w5_k#r3s3_st1x1_pad1x1_dil1x1_g#+bias+relu",
               "bwd_data_f32_n1c#h4w5_k#r3s3_st1x1_pad1x1_dil1x1_g#",
               "bwd_filter_f32_n1c#h4w5_k17r3s3_st1x1_pad1x1_dil1x1_g1",
               "bwd_filter_f32_n1c17h4w5_k#r1s1_st1x1_pad0x0_dil1x1_g1", "linear_f32_n3c#_k5+bias",
               "linear_f32_n3c5_k#+relu"},
              channel_counts());
}

TEST(Sizes, OtherOperationsAreRightForAnyNumberOfChannels) {
  check_sizes(
      {"maxpool_f32_n1c#h5w4_r3s3_st2x2_pad1x1_dil1x1", "avgpool_f32_n1c#h5w4_r3s3_st1x1_pad1x1",
       "avgpool_f32_n2c#h5w4_p1q1", "bwd_maxpool_f32_n1c#h5w4_r3s3_st2x2_pad1x1_dil1x1",
       "bwd_avgpool_f32_n1c#h5w4_r3s3_st1x1_pad1x1", "bilinear_f32_n1c#h2w3_p5q4",
       "nearest_f32_n1c#h2w3_p5q4", "silu_f32_n1c#h3w2", "bwd_silu_f32_n1c#h3w2",
       "add_f32_n1c#h3w2+relu", "mul_f32_n2c#h3w2_channelwise", "scaleshift_f32_n2c#h3w2+silu",
       "concat_f32_n2c#x3x#h3w2", "concat_f32_n2c#x#h3w2_shuffle2", "slice_f32_n2c200h3w2_k#from7"},
      channel_counts());
}

// A tile of a matrix product has at most 14 rows, and one of a depthwise convolution 7 columns.
TEST(Sizes, OperationsAreRightForAnyWidth) {
  check_sizes(
      {"fwd_f32_n1c17h1w#_k33r1s1_st1x1_pad0x0_dil1x1_g1",
       "fwd_f32_n1c17h3w#_k18r3s3_st1x1_pad1x1_dil1x1_g1+bias",
       "fwd_f32_n1c17h3w#_k17r3s3_st2x2_pad1x1_dil1x1_g17",
       "fwd_f32_n1c17h5w#_k17r5s5_st1x1_pad2x2_dil1x1_g17",
       "bwd_filter_f32_n1c17h3w#_k18r3s3_st1x1_pad1x1_dil1x1_g1",
       "maxpool_f32_n1c17h3w#_r3s3_st2x2_pad1x1_dil1x1", "avgpool_f32_n1c17h3w#_r3s3_st1x1_pad1x1",
       "relu_f32_n1c17h1w#", "groupnorm_f32_n1c6h1w#_g2_eps1e-05"},
      sizes_around(kernels::kTileBlock, 1));
}

TEST(Sizes, ResizesAreRightAroundTheColumnsOfAStep) {
  check_sizes({"bilinear_f32_n1c3h2w9_p2q#", "bilinear_f32_n1c3h2w9_p3q#_align",
               "nearest_f32_n1c3h2w9_p3q#"},
              sizes_around(kernels::kResizeColumns, kernels::kResizeColumns));
}

TEST(Sizes, SumsAreRightAroundTheirParts) {
  for (const std::int64_t part : {kernels::kPixelPart, kernels::kPlanePart}) {
    check_sizes({"channelsums_f32_n1c3h1w#", "moments_f32_n1c3h1w#",
                 "bwd_normalize_sums_f32_n1c3h1w#_eps1e-05", "groupnorm_f32_n1c4h1w#_g2_eps1e-05",
                 "silu_f32_n1c3h1w#"},
                sizes_around(part, part));
  }
}

}  // namespace
}  // namespace torchalgo
