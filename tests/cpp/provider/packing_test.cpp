// SPDX-License-Identifier: BSD-3-Clause
#include "provider/packing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "all_algorithms.h"
#include "profiler/check.h"
#include "provider/cpu_device.h"
#include "provider/find_candidates.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

// Channels beside, at and between the blocks of 8 and 16, groups, 1x1, strides, dilation, 3-D.
constexpr const char* kProblems[] = {
    "fwd_f32_n1c3h20w20_k16r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n1c3h20w20_k30r7s7_st2x2_pad3x3_dil1x1_g1+bias+relu",
    "fwd_f32_n2c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias",
    "fwd_f32_n1c20h14w14_k33r3s3_st1x1_pad1x1_dil1x1_g1",
    "fwd_f32_n1c128h9w9_k48r3s3_st1x1_pad1x1_dil1x1_g1+bias+add+relu",
    "fwd_f32_n1c100h7w7_k10r1s1_st1x1_pad0x0_dil1x1_g1",
    "fwd_f32_n1c72h7w7_k104r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "fwd_f32_n1c64h8w8_k1r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "fwd_f32_n1c32h12w12_k64r5s3_st2x1_pad2x1_dil2x1_g1",
    "fwd_f32_n1c32h12w12_k32r3s3_st1x1_pad1x1_dil1x1_g2",
    "fwd_f32_n1c64h12w12_k64r3s3_st1x1_pad1x1_dil1x1_g4+bias",
    "fwd_f32_n1c20h18w18_k24r3s3_st2x2_pad1x1_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r5s5_st1x1_pad2x2_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r7s7_st1x1_pad3x3_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r1s3_st1x1_pad0x1_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r3s1_st1x1_pad1x0_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r1s5_st1x1_pad0x2_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r5s1_st1x1_pad2x0_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r1s7_st1x1_pad0x3_dil1x1_g1+bias",
    "fwd_f32_n1c20h12w12_k24r7s1_st1x1_pad3x0_dil1x1_g1+bias",
    "fwd_f32_n1c24h12w12_k24r3s3_st1x1_pad1x1_dil1x1_g24",
    "fwd_f32_n1c40h12w12_k40r5s5_st2x2_pad2x2_dil1x1_g40+bias+relu6",
    "fwd_bf16_n1c16h12w12_k20r3s3_st1x1_pad1x1_dil1x1_g1",
    "bwd_data_f32_n1c20h14w14_k33r3s3_st1x1_pad1x1_dil1x1_g1",
    "bwd_data_f32_n1c16h14w14_k16r4s4_st2x2_pad1x1_dil1x1_g1",
    "bwd_filter_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1",
    "linear_f32_n2c30_k17+bias",
    "scaleshift_f32_n1c30h5w5",
    "scaleshift_f32_n1c32h5w5+relu",
    "layernorm_f32_n1c30h5w5_eps1e-05",
    "variancenorm_f32_n1c30h5w5_eps1e-05",
    "groupnorm_f32_n1c30h5w5_g6_eps1e-05",
    "normalize_f32_n2c30h5w5_eps1e-05",
    "bwd_normalize_f32_n2c30h5w5_eps1e-05",
    "bwd_normalize_sums_f32_n2c30h5w5_eps1e-05+relu6",
    "chain_f32_n1c24h9w9_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias_k40r3s3_st1x1_pad1x1_dil1x1_g40"
    "_k17r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "chain_f32_n1c30h5w5_scaleshift+relu_k20r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "chain_f32_n1c72h5w5_scaleshift+relu_k70r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "chain_f32_n1c30h5w5_avgpool_k20r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu"
    "_k30r1s1_st1x1_pad0x0_dil1x1_g1+bias",
    "chain_f32_n1c30h5w5_mul_k20r1s1_st1x1_pad0x0_dil1x1_g1",
    "chain_f32_n1c32h9w9_k32r5s5_st1x1_pad2x2_dil1x1_g32+bias_k64r1s1_st1x1_pad0x0_dil1x1_g1",
};

// One for each kind of algorithm that packs nothing.
constexpr const char* kWithoutWeights[] = {
    "maxpool_f32_n1c8h8w8_r2s2_st2x2_pad0x0_dil1x1",
    "relu_f32_n1c8h8w8",
    "add_f32_n1c8h8w8",
    "mul_f32_n1c8h8w8",
    "sub_f32_n1c8h8w8",
    "concat_f32_n1c16x16h8w8",
    "slice_f32_n1c32h8w8_k16from16",
    "shuffle_f32_n1c32h8w8_g2",
    "pixelshuffle_f32_n1c32h8w8_x2",
    "nearest_f32_n1c8h8w8_x2x2",
    "bwd_relu_f32_n1c8h8w8",
    "bwd_maxpool_f32_n1c8h8w8_r2s2_st2x2_pad0x0_dil1x1",
    "channelsums_f32_n1c8h8w8",
    "attention_f32_n1h2q6k5d4w3",
    "linearattention_f32_n1h2q6k5d4w3_eps1e-06",
    "channelsums_f32_n1c8h8w8_perimage_product",
    "bwd_filter_f32_n1c16h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1",
    "bwd_filter_f32_n1c3h14w14_k16r3s3_st2x2_pad1x1_dil1x1_g1",
    "bwd_filter_f32_n1c16h14w14_k16r3s3_st2x2_pad1x1_dil1x1_g16",
    "transform_f32_n1c8h4w4_nchw_nhwc",
    "transform_f32_n1c1h4w4_nchw_nhwc",
};

LayerWeights random_weights_of_layer(const Problem& problem) {
  const auto options = at::TensorOptions().dtype(scalar_type(dtype_of(problem)));
  const auto random = [&](const std::vector<std::int64_t>& sizes) {
    return sizes.empty() ? at::Tensor() : at::rand(sizes, options);
  };
  return {random(weight_sizes(problem)), random(bias_sizes(problem))};
}

Weights random_weights(const Problem& problem) {
  Weights weights;
  for (const Problem& layer : layers_of(problem)) weights.push_back(random_weights_of_layer(layer));
  return weights;
}

// What `pack` really allocates.
std::int64_t allocated(const Kernel& kernel) {
  const Weights plain = random_weights(kernel.problem);
  return held_bytes(pack(kernel, plain), plain);
}

// Returns the same operation on larger images, and on one more of them. A batch norm keeps their
// number, since its second input has the sizes [2, c, 1, 1] for any batch.
Problem enlarged(const Problem& problem) {
  const int more = std::holds_alternative<BatchNormProblem>(problem) ? 0 : 1;
  std::vector<std::vector<std::int64_t>> sizes = input_sizes(problem);
  for (std::vector<std::int64_t>& each : sizes) {
    each[0] += more;
    for (std::size_t i = 2; i < each.size(); ++i) each[i] += each[i] > 1 ? 16 : 0;
  }
  return with_input_sizes(problem, sizes);
}

// Returns the algorithm with kernels that pack as another one.
Algorithm packing_as(const Kernel& other, const Algorithm& row) {
  Algorithm result = row;
  result.prepare = [&](const Problem& problem, const Primitive& primitive, const Device& device) {
    Kernel kernel = row.prepare(problem, primitive, device);
    kernel.pack = other.pack;
    return kernel;
  };
  return result;
}

// Runs primitives on `problem` with weights that were packed for `other`, by the same primitive or
// by another one of its algorithm, if they say that they can share them. Returns their number.
int check_packed_for(const Problem& other, const Problem& problem) {
  int checked = 0;
  const Sample sample = make_sample(problem, 5);
  const at::Tensor reference = reference_result(problem, sample);
  for (const Algorithm& row : all_algorithms()) {
    if (!row.runs_on_cpu) continue;
    std::vector<Kernel> packers;
    for (const Primitive& each : row.offer(other, cpu_device()).primitives)
      packers.push_back(row.prepare(other, each, cpu_device()));
    for (const Primitive& each : row.offer(problem, cpu_device()).primitives) {
      const std::string packing = row.prepare(problem, each, cpu_device()).packing;
      for (const Kernel& packer : packers) {
        if (packing.empty() || packing != packer.packing || !packer.pack) continue;
        const at::Tensor result = run_once(packing_as(packer, row), problem, each, sample);
        const double error = (result.to(at::kDouble) - reference).norm().item<double>();
        EXPECT_LE(error, error_bound(stored_type(each, dtype_of(problem)), 1e-5) *
                             reference.norm().item<double>())
            << to_string(each) << " on " << to_string(problem) << ", packed by "
            << to_string(packer.primitive) << " for " << to_string(other);
        ++checked;
      }
    }
  }
  return checked;
}

}  // namespace

TEST(PackToWeightPages, MovesWhatIsPackedAndLeavesTheModelsOwn) {
  const at::Tensor own = at::arange(100'000, at::kFloat), bias = at::arange(7, at::kFloat);
  at::Tensor packed_at_first;
  Kernel kernel;
  kernel.pack = [&](const Weights& weights) {
    packed_at_first = weights[0].weights.add(1);
    return Packed{{weights[0].weights, packed_at_first},
                  {at::Tensor(), weights[0].weights.narrow(0, 5, 9)}};
  };
  const Packed packed = pack_to_weight_pages(kernel, {{own, bias}});
  ASSERT_EQ(packed.size(), 2U);
  EXPECT_EQ(packed[0].weights.data_ptr(), own.data_ptr());
  EXPECT_NE(packed[0].bias.data_ptr(), packed_at_first.data_ptr());
  EXPECT_TRUE(packed[0].bias.equal(packed_at_first));
  EXPECT_FALSE(packed[1].weights.defined());
  EXPECT_TRUE(packed[1].bias.is_alias_of(own));
}

TEST(PackedBytes, AreWhatPackAllocatesForEveryRowOfTheCpu) {
  std::set<std::string_view> seen;
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    for (const Algorithm& row : all_algorithms()) {
      if (!row.runs_on_cpu) continue;
      // Without these instructions, what needs them runs as plain code.
      for (const Primitive& primitive : offer_all(row, problem, cpu_device()).primitives) {
        const Kernel kernel = row.prepare(problem, primitive, cpu_device());
        EXPECT_EQ(packed_bytes(kernel), allocated(kernel)) << text << " " << to_string(primitive);
        if (kernel.pack) seen.insert(row.name);
      }
    }
  }
  for (const Algorithm& row : all_algorithms()) {
    if (!row.runs_on_cpu || seen.contains(row.name)) continue;
    const bool has_no_weights =
        std::any_of(std::begin(kWithoutWeights), std::end(kWithoutWeights), [&](const char* text) {
          return !row.offer(parse_problem(text), cpu_device()).primitives.empty();
        });
    EXPECT_TRUE(has_no_weights) << row.name << " needs a problem above";
  }
}

TEST(Packing, OfEqualNamesIsRightForSmallerAndLargerImages) {
  int checked = 0;
  for (const char* text : kProblems) {
    const Problem small = parse_problem(text), large = enlarged(small);
    checked += check_packed_for(small, large) + check_packed_for(large, small);
  }
  EXPECT_GT(checked, 100);
}

// Returns the tensors that the row packs for `problem`, as far as they are plain memory.
std::vector<at::Tensor> packed_by(const Algorithm& row, const Problem& problem,
                                  const Primitive& primitive, const Weights& weights) {
  std::vector<at::Tensor> tensors;
  for (const LayerWeights& layer : pack(row.prepare(problem, primitive, cpu_device()), weights)) {
    for (const at::Tensor& tensor : {layer.weights, layer.bias})
      if (tensor.defined() && !tensor.is_mkldnn()) tensors.push_back(tensor);
  }
  return tensors;
}

TEST(Packing, IsNamedByEachRowThatPacksTheSameForOtherSizes) {
  std::set<std::string_view> same, other;
  for (const char* text : kProblems) {
    const Problem small = parse_problem(text), large = enlarged(small);
    const Weights weights = random_weights(small);
    for (const Algorithm& row : all_algorithms()) {
      if (!row.runs_on_cpu) continue;
      for (const Primitive& each : row.offer(small, cpu_device()).primitives) {
        if (!row.prepare(small, each, cpu_device()).packing.empty()) continue;
        const Offer offer = offer_exact(row, large, cpu_device(), each.name, each.src, each.dst);
        if (!offer.refusal.empty()) continue;
        const auto first = packed_by(row, small, each, weights);
        const auto second = packed_by(row, large, each, weights);
        const bool is_same = std::ranges::equal(
            first, second, [](const at::Tensor& a, const at::Tensor& b) { return a.equal(b); });
        if (!first.empty()) (is_same ? same : other).insert(row.name);
      }
    }
  }
  for (const std::string_view name : same) EXPECT_TRUE(other.contains(name)) << name;
}

// A plan's variant runs other sizes too, also those for which it is not worth measuring.
TEST(OfferExact, TakesWhatWasOfferedForOtherSizes) {
  int checked = 0;
  for (const char* text : kProblems) {
    const Problem small = parse_problem(text), large = enlarged(small);
    for (const auto& [planned, called] : {std::pair(small, large), std::pair(large, small)}) {
      const Sample sample = make_sample(called, 3);
      const at::Tensor reference = reference_result(called, sample);
      for (const Algorithm& row : all_algorithms()) {
        if (!row.runs_on_cpu) continue;
        for (const Primitive& each : row.offer(planned, cpu_device()).primitives) {
          const Offer offer = offer_exact(row, called, cpu_device(), each.name, each.src, each.dst);
          EXPECT_EQ(offer.refusal, "") << to_string(each) << " of " << to_string(planned);
          if (!offer.refusal.empty()) continue;
          const auto offered = row.offer(called, cpu_device()).primitives;
          if (std::ranges::find(offered, offer.primitives[0]) != offered.end()) continue;
          const at::Tensor result = run_once(row, called, offer.primitives[0], sample);
          const double error = (result.to(at::kDouble) - reference).norm().item<double>();
          EXPECT_LE(error, error_bound(stored_type(each, dtype_of(called)), 1e-5) *
                               reference.norm().item<double>())
              << to_string(each) << " on " << to_string(called);
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 20);
}

// Rows of GPU libraries pack by torch alone, so their weights may lie anywhere.
TEST(PackedBytes, AreWhatPackAllocatesForEveryRowOfCudnn) {
  const std::map<Direction, std::vector<std::string>> rows = {
      {Direction::kForward, {"cudnn_legacy.fwd.1", "cudnn9.conv.e1"}},
      {Direction::kBackwardData, {"cudnn_legacy.bwd_data.1"}},
      {Direction::kBackwardFilter, {"cudnn_legacy.bwd_filter.1"}}};
  int compared = 0;
  for (const char* text : kProblems) {
    const Problem problem = parse_problem(text);
    const auto* conv = std::get_if<ConvProblem>(&problem);
    if (conv == nullptr) continue;
    for (const std::string& name : rows.at(conv->direction)) {
      for (const Layout layout : {Layout::kNchw, Layout::kNhwc}) {
        const char* suffix = layout == Layout::kNhwc ? ".krsc" : "";
        const Primitive primitive{name + suffix, layout, layout, 0};
        const Algorithm* row = find_algorithm(all_algorithms(), primitive.name);
        ASSERT_NE(row, nullptr) << primitive.name;
        const Kernel kernel = row->prepare(problem, primitive, Device());
        EXPECT_EQ(packed_bytes(kernel), allocated(kernel)) << text << " " << primitive.name;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 20);
}

TEST(PackedBytes, OfAWinogradPlanAreFourTimesTheWeightsInWholeBlocks) {
  const Problem problem = parse_problem("fwd_f32_n1c64h56w56_k64r3s3_st1x1_pad1x1_dil1x1_g1");
  const Algorithm* row = find_algorithm(all_algorithms(), "cpu.winograd_f4x4_3x3.t14");
  ASSERT_NE(row, nullptr);
  const Primitive primitive{"cpu.winograd_f4x4_3x3.t14", Layout::kNChw16c, Layout::kNChw16c, 0};
  EXPECT_EQ(plain_weight_bytes(problem), 64 * 64 * 9 * 4);
  EXPECT_EQ(packed_bytes(row->prepare(problem, primitive, cpu_device())),
            4 * 64 * 64 * 9 * 4 + 64 * 4);
}

TEST(HeldBytes, LeaveOutTheMemoryOfTheModelsOwnWeights) {
  const Weights plain = {{at::rand({4, 4}), at::rand({4})}};
  EXPECT_EQ(held_bytes(plain, plain), 0);
  EXPECT_EQ(held_bytes({{plain[0].weights.view({16}), {}}}, plain), 0);
  const at::Tensor own = at::rand({10});
  EXPECT_EQ(held_bytes({{own, own.view({2, 5})}}, plain), 40) << "one memory counts once";
}

}  // namespace torchalgo
