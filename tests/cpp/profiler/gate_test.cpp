// SPDX-License-Identifier: BSD-3-Clause
// Right rows pass the numeric gate, and rows that are wrong in one small thing do not.
#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "all_algorithms.h"
#include "cpu_algo/row_check.h"
#include "profiler/check.h"
#include "provider/find_candidates.h"
#include "provider/kernel.h"

namespace torchalgo {
namespace {

using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::int64_t count) {
  return std::uniform_int_distribution<std::int64_t>(0, count - 1)(random);
}

// What a mutation may touch of one run.
struct Site {
  const KernelArgs& args;
  at::Tensor dst;
  Random& random;
  float* stale;  // workspace that the row asked for and does not use; null if there is none
  float* values() const { return dst.data_ptr<float>(); }
  std::int64_t count() const { return dst.numel(); }
};

// Dimension and size of rows and columns of the image: blocked layouts are [n, c / B, h, w, B].
constexpr int kRows = 2, kColumns = 3;

// The block of channels, or the channel, that comes last.
at::Tensor last_channels(const Site& site) { return site.dst.select(1, site.dst.size(1) - 1); }

at::Tensor random_row(const Site& site, int dim) {
  return site.dst.select(dim, pick(site.random, site.dst.size(dim)));
}

// A region of `rows` x `columns` at a multiple of its size, as a tile of a kernel has it.
at::Tensor random_tile(const Site& site, std::int64_t rows, std::int64_t columns) {
  const std::int64_t top =
      rows * pick(site.random, std::max<std::int64_t>(1, site.dst.size(2) / rows));
  const std::int64_t left =
      columns * pick(site.random, std::max<std::int64_t>(1, site.dst.size(3) / columns));
  return site.dst.narrow(2, top, std::min(rows, site.dst.size(2) - top))
      .narrow(3, left, std::min(columns, site.dst.size(3) - left));
}

// An element whose value counts: wrong by a percentage of almost nothing is not wrong.
float& large_element(const Site& site) {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    float& value = site.values()[pick(site.random, site.count())];
    if (std::abs(value) > 0.05F) return value;
  }
  return site.values()[0];
}

struct Mutation {
  const char* name;
  std::function<void(Site&)> after = nullptr;            // spoils the result
  std::function<void(at::Tensor&)> input = nullptr;      // spoils the input that the row sees
  std::function<void(LayerWeights&)> weights = nullptr;  // spoils what it packs
  std::int64_t more_workspace = 0;  // bytes that it asks for beyond the row's own
  bool (*fits)(const Problem&, Layout) = nullptr;
  std::function<void(at::Tensor&)> second = nullptr;  // spoils the second input
};

bool has_pad_lanes(const Problem& problem, Layout layout) {
  return is_blocked(layout) && result_sizes(problem)[1] % block_size(layout) != 0;
}
bool has_bias(const Problem& problem, Layout) { return has(epilogue_of(problem), PostOp::kBias); }
bool has_add(const Problem& problem, Layout) { return has(epilogue_of(problem), PostOp::kAdd); }
bool has_second(const Problem& problem, Layout layout) {
  return input_sizes(problem).size() > (has_add(problem, layout) ? 2U : 1U);
}
bool has_relu(const Problem& problem, Layout) { return has(epilogue_of(problem), PostOp::kRelu); }
bool has_relu6(const Problem& problem, Layout) { return has(epilogue_of(problem), PostOp::kRelu6); }
bool has_columns(const Problem& problem, Layout) { return result_sizes(problem)[3] > 1; }
bool has_weights(const Problem& problem, Layout) { return !weight_sizes(problem).empty(); }

std::vector<Mutation> result_mutations() {
  return {
      {"one element is 1 % off", [](Site& s) { large_element(s) *= 1.01F; }},
      {"one element is 0.1 % off", [](Site& s) { large_element(s) *= 1.001F; }},
      {"one element has the other sign",
       [](Site& s) {
         float& v = large_element(s);
         v = -v;
       }},
      {"the last column is that before it",
       [](Site& s) {
         const auto last = s.dst.size(kColumns) - 1;
         s.dst.select(kColumns, last).copy_(s.dst.select(kColumns, last - 1));
       },
       nullptr, nullptr, 0, &has_columns},
      {"the last row is zero", [](Site& s) { s.dst.select(kRows, s.dst.size(kRows) - 1).zero_(); }},
      {"the last element of each row is left out",
       [](Site& s) { s.dst.select(kColumns, s.dst.size(kColumns) - 1).fill_(std::nanf("")); }},
      {"a column is swapped with the next",
       [](Site& s) {
         const auto at = pick(s.random, s.dst.size(kColumns) - 1);
         const at::Tensor kept = s.dst.select(kColumns, at).clone();
         s.dst.select(kColumns, at).copy_(s.dst.select(kColumns, at + 1));
         s.dst.select(kColumns, at + 1).copy_(kept);
       },
       nullptr, nullptr, 0, &has_columns},
      {"a row is added twice", [](Site& s) { random_row(s, kRows).mul_(2); }},
      {"a tile of 4 x 4 is zero", [](Site& s) { random_tile(s, 4, 4).zero_(); }},
      {"a tile of 2 x 6 is 0.2 % off", [](Site& s) { random_tile(s, 2, 6).mul_(1.002); }},
      {"a tile of 6 x 6 is shifted by one",
       [](Site& s) {
         const at::Tensor tile = random_tile(s, 6, 6);
         tile.copy_(tile.roll({1}, {3}));
       },
       nullptr, nullptr, 0, &has_columns},
      {"the last channels are those of the first",
       [](Site& s) { last_channels(s).copy_(s.dst.select(1, 0)); }},
      {"the last channels are zero", [](Site& s) { last_channels(s).zero_(); }},
      {"one channel is 0.5 % off", [](Site& s) { s.dst.select(1, 0).mul_(1.005); }},
      {"the second image is the first",
       [](Site& s) { s.dst.select(0, 1).copy_(s.dst.select(0, 0)); }},
      {"all is rounded to bf16", [](Site& s) { s.dst.copy_(s.dst.to(at::kBFloat16)); }},
      {"all is rounded to f16", [](Site& s) { s.dst.copy_(s.dst.to(at::kHalf)); }},
      {"all is a little off", [](Site& s) { s.dst.mul_(1.00002); }},
      {"a NaN becomes zero", [](Site& s) { s.dst.nan_to_num_(0.0); }},
      {"a NaN in the last column becomes zero",
       [](Site& s) { s.dst.select(kColumns, s.dst.size(kColumns) - 1).nan_to_num_(0.0); }},
      {"a pad lane is not zero",
       [](Site& s) { last_channels(s).select(0, 0).select(-1, s.dst.size(4) - 1).fill_(1e-20F); },
       nullptr, nullptr, 0, &has_pad_lanes},
      {"one pad lane of one pixel is left as it was",
       [](Site& s) { s.values()[s.count() - 1] = std::nanf(""); }, nullptr, nullptr, 0,
       &has_pad_lanes},
      {"leaks below zero",
       [](Site& s) {
         float& v = *std::min_element(s.values(), s.values() + s.count());
         v = -0.01F;
       },
       nullptr, nullptr, 0, &has_relu},
      {"clamps at 5.9", [](Site& s) { s.dst.clamp_max_(5.9); }, nullptr, nullptr, 0, &has_relu6},
      {"the residual is added twice", [](Site& s) { s.dst.add_(s.args.residual); }, nullptr,
       nullptr, 0, &has_add},
      {"the residual is left out of one image",
       [](Site& s) { s.dst.select(0, 0).sub_(s.args.residual.select(0, 0)); }, nullptr, nullptr, 0,
       &has_add},
  };
}

std::vector<Mutation> memory_mutations() {
  constexpr std::int64_t kBytes = 4096;
  return {
      {"writes one element past its result",
       [](Site& s) { s.values()[s.count() + pick(s.random, 64)] = 0; }},
      {"writes one element before its result",
       [](Site& s) { s.values()[-1 - pick(s.random, 64)] = 1; }},
      {"writes past its workspace", [](Site& s) { s.stale[kBytes / 4] = 0; }, nullptr, nullptr,
       kBytes},
      {"writes to its input",
       [](Site& s) {
         float* const src = const_cast<float*>(s.args.src[0].const_data_ptr<float>());
         src[pick(s.random, s.args.src[0].numel())] += 1;
       }},
      {"adds what the workspace held", [](Site& s) { large_element(s) += 1e-9F * *s.stale; },
       nullptr, nullptr, kBytes},
      {"takes the larger of its result and what the workspace held",
       [](Site& s) {
         float& v = large_element(s);
         v = *s.stale > v ? *s.stale : v;  // false for NaN
       },
       nullptr, nullptr, kBytes},
      {"takes the smaller of its result and what the workspace held",
       [](Site& s) {
         float& v = large_element(s);
         v = *s.stale < v ? *s.stale : v;
       },
       nullptr, nullptr, kBytes},
      {"copies what is past its input",
       [](Site& s) {
         large_element(s) = s.args.src[0].const_data_ptr<float>()[s.args.src[0].numel()];
       }},
      {"multiplies what is past its input by zero and adds it",
       [](Site& s) {
         large_element(s) += 0 * s.args.src[0].const_data_ptr<float>()[s.args.src[0].numel()];
       }},
  };
}

// Two threads write, or add to, the same part, and only sometimes late enough to be seen.
std::vector<Mutation> race_mutations() {
  const auto sometimes = [](double probability, auto spoil) {
    return [=](Site& s) {
      if (std::bernoulli_distribution(probability)(s.random)) spoil(s);
    };
  };
  const auto add_twice = [](Site& s) { random_tile(s, 4, 4).mul_(2); };
  const auto leave_stale = [](Site& s) { random_row(s, kRows).mul_(0.9); };
  const auto other_order = [](Site& s) {  // a sum in another order: right, but other bits
    float& v = large_element(s);
    v = std::nextafter(v, 0.0F);
  };
  return {{"adds a tile twice, in half of the runs", sometimes(0.5, add_twice)},
          {"adds a tile twice, in most runs", sometimes(0.8, add_twice)},
          {"a row is late, in half of the runs", sometimes(0.5, leave_stale)},
          {"a row is late, in most runs", sometimes(0.9, leave_stale)},
          {"adds in another order, in half of the runs", sometimes(0.5, other_order)}};
}

std::vector<Mutation> input_mutations() {
  return {
      {"does not see the last input channel", nullptr,
       [](at::Tensor& src) { src.select(1, src.size(1) - 1).zero_(); }},
      {"does not see the last row", nullptr,
       [](at::Tensor& src) { src.select(kRows, src.size(kRows) - 1).zero_(); }},
      {"does not see the first element", nullptr,
       [](at::Tensor& src) { src.data_ptr<float>()[0] = 100; }},
      {"takes denormals and small numbers for zero", nullptr,
       [](at::Tensor& src) { src.masked_fill_(src.abs().lt(0.01), 0); }},
      {"reads its input in f16", nullptr, [](at::Tensor& src) { src.copy_(src.to(at::kHalf)); }},
      {"does not see the last row of its second input", nullptr, nullptr, nullptr, 0, &has_second,
       [](at::Tensor& src) { src.select(kRows, src.size(kRows) - 1).zero_(); }},
      {"reads its second input in f16", nullptr, nullptr, nullptr, 0, &has_second,
       [](at::Tensor& src) { src.copy_(src.to(at::kHalf)); }},
      {"the bias is missing", nullptr, nullptr, [](LayerWeights& w) { w.bias.zero_(); }, 0,
       &has_bias},
      {"the last bias is missing", nullptr, nullptr,
       [](LayerWeights& w) { w.bias[w.bias.size(0) - 1] = 0; }, 0, &has_bias},
      {"one tap of the filter is missing", nullptr, nullptr,
       [](LayerWeights& w) { w.weights.select(3, 0).select(2, 0).zero_(); }, 0, &has_weights},
      {"one weight is missing", nullptr, nullptr,
       [](LayerWeights& w) { w.weights.data_ptr<float>()[w.weights.numel() - 1] = 0; }, 0,
       &has_weights},
      {"the weights are in f16", nullptr, nullptr,
       [](LayerWeights& w) { w.weights.copy_(w.weights.to(at::kHalf)); }, 0, &has_weights},
  };
}

// A row that keeps the result of its first run, as one does that takes an address for a value.
Mutation forgetful() {
  const auto kept = std::make_shared<at::Tensor>();
  return {"returns the result of its first run", [kept](Site& s) {
            if (!kept->defined()) *kept = s.dst.clone();
            s.dst.copy_(*kept);
          }};
}

std::vector<Mutation> all_mutations() {
  std::vector<Mutation> all;
  for (auto list : {result_mutations(), memory_mutations(), race_mutations(), input_mutations(),
                    std::vector{forgetful()}}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

// `row` with a mutation in its source, as it were; the row itself stays right.
Algorithm mutated(const Algorithm& row, const Mutation& mutation, std::uint64_t seed) {
  Algorithm mutant = row;
  const auto random = std::make_shared<Random>(seed);
  mutant.prepare = [&row, mutation, random](const Problem& problem, const Primitive& primitive,
                                            const Device& device) -> Kernel {
    const auto right = std::make_shared<const Kernel>(row.prepare(problem, primitive, device));
    const std::int64_t own_bytes = right->primitive.workspace_bytes;
    Kernel kernel = {.problem = problem, .primitive = right->primitive};
    kernel.primitive.workspace_bytes += mutation.more_workspace;
    kernel.run = [=](const KernelArgs& args) {
      std::vector<at::Tensor> src(args.src.begin(), args.src.end());
      if (mutation.input) {
        src[0] = src[0].clone();
        mutation.input(src[0]);
      }
      if (mutation.second) {
        src[1] = src[1].clone();
        mutation.second(src[1]);
      }
      at::Tensor dst = right->run(
          {args.packed, src, args.residual, args.dst, own_bytes > 0 ? args.workspace : nullptr});
      auto* const stale = static_cast<std::byte*>(args.workspace) + own_bytes;
      Site site = {args, dst, *random, reinterpret_cast<float*>(stale)};
      if (mutation.after) mutation.after(site);
      return dst;
    };
    if (right->pack) {
      kernel.pack = [=](const Weights& w) {
        LayerWeights own = {w[0].weights.clone(),
                            w[0].bias.defined() ? w[0].bias.clone() : at::Tensor()};
        if (mutation.weights) mutation.weights(own);
        return right->pack({own});
      };
    }
    return kernel;
  };
  return mutant;
}

struct Subject {
  const char* row;
  const char* problem;
};
constexpr Subject kSubjects[] = {
    {"cpu.im2col_gemm", "fwd_f32_n2c12h17w15_k20r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu"},
    {"cpu.direct", "fwd_f32_n2c32h20w18_k24r3s3_st1x1_pad1x1_dil1x1_g1+bias+add"},
    {"cpu.winograd_f4x4_3x3", "fwd_f32_n2c32h22w26_k40r3s3_st1x1_pad1x1_dil1x1_g1+bias"},
    {"cpu.winograd_f2x2_3x3", "fwd_f32_n2c32h22w26_k40r3s3_st1x1_pad1x1_dil1x1_g1+bias+add"},
    {"cpu.winograd_f1x4_1x7", "fwd_f32_n2c32h12w26_k40r1s7_st1x1_pad0x3_dil1x1_g1+bias+relu"},
    {"cpu.depthwise", "fwd_f32_n2c24h19w21_k24r3s3_st1x1_pad1x1_dil1x1_g24+bias+relu6"},
    {"cpu.conv1x1", "fwd_f32_n2c64h14w14_k72r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu"},
    {"cpu.strassen_1x1", "fwd_f32_n2c64h14w14_k72r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu"},
    {"cpu.pool", "maxpool_f32_n2c20h17w15_r3s3_st2x2_pad1x1_dil1x1"},
    {"cpu.add", "add_f32_n2c20h17w15+relu"},
    {"cpu.bwd_activation", "bwd_silu_f32_n2c20h17w15"},
    {"cpu.bwd_activation", "bwd_gelu_f32_n2c20h17w15"},
    {"cpu.channel_sums", "channelsums_f32_n2c20h17w15_perimage_product"},
};

struct Subjects {
  Problem problem;
  const Algorithm* row;
  std::vector<Primitive> primitives;
};

Subjects subject(const Subject& text) {
  Subjects result = {parse_problem(text.problem), find_algorithm(all_algorithms(), text.row), {}};
  if (result.row == nullptr) return result;
  // Variants of one layout differ in the size of their blocks only.
  for (const Primitive& primitive : result.row->offer(result.problem, cpu_device()).primitives) {
    const auto has_its_layout = [&](const Primitive& p) { return p.src == primitive.src; };
    if (std::none_of(result.primitives.begin(), result.primitives.end(), has_its_layout)) {
      result.primitives.push_back(primitive);
    }
  }
  return result;
}

constexpr double kMaxRelError = 1e-5;  // optimize's default

// Returns true for a mutation whose error is no larger than that of rounding a result to bf16. No
// check can find it.
bool is_below_bf16(std::string_view mutation) {
  constexpr std::string_view kSmall[] = {
      "a tile of 2 x 6 is 0.2 % off", "one channel is 0.5 % off",
      "all is rounded to bf16",       "all is rounded to f16",
      "all is a little off",          "takes denormals and small numbers for zero",
      "reads its input in f16",       "reads its second input in f16",
      "the weights are in f16"};
  return std::ranges::find(kSmall, mutation) != std::end(kSmall);
}

TEST(Gate, RejectsMutantsInAtLeast99OfEach100) {
  const Threads one(1);
  int mutants = 0;
  std::vector<std::string> escaped;
  for (const Subject& text : kSubjects) {
    const Subjects s = subject(text);
    ASSERT_FALSE(s.primitives.empty()) << text.row << " " << text.problem;
    std::uint64_t seed = 0;
    for (const Mutation& mutation : all_mutations()) {
      for (const Primitive& offered : s.primitives) {
        const Layout layout = result_layout(s.problem, offered);
        if (mutation.fits != nullptr && !mutation.fits(s.problem, layout)) continue;
        if (is_typed(layout) && is_below_bf16(mutation.name)) continue;
        const Algorithm mutant = mutated(*s.row, mutation, ++seed);
        const CheckResult result =
            check_primitives({mutant}, s.problem, {offered}, kMaxRelError)[0];
        ++mutants;
        if (result.failure.empty()) {
          escaped.push_back(fmt::format("{} on {}: {} (relative L2 {:.2g})", to_string(offered),
                                        text.problem, mutation.name, result.rel_error));
        }
      }
    }
  }
  std::string list;
  for (const std::string& one : escaped) list += "\n  " + one;
  RecordProperty("mutants", mutants);
  RecordProperty("escaped", static_cast<int>(escaped.size()));
  fmt::print("{} mutants, {} escaped{}\n", mutants, escaped.size(), list);
  EXPECT_GE(mutants, 300);
  EXPECT_LE(static_cast<double>(escaped.size()), 0.01 * mutants) << list;
}

TEST(Gate, PassesEveryRowAsItIs) {
  constexpr const char* kMore[] = {
      "fwd_f32_n1c3h33w35_k20r7s7_st2x2_pad3x3_dil1x1_g1+bias+relu",
      "fwd_f32_n1c512h7w7_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+hardswish",
      "fwd_f32_n1c16h9w9_k32r1s1_st2x2_pad0x0_dil1x1_g1",
      "bwd_data_f32_n1c24h14w14_k32r3s3_st1x1_pad1x1_dil1x1_g1",
      "bwd_filter_f32_n2c8h14w14_k16r3s3_st1x1_pad1x1_dil1x1_g1",
      "avgpool_f32_n1c20h17w15_r3s3_st2x2_pad1x1",
      "hardswish_f32_n2c20h17w15",
      "fwd_f32_n1c64h14w14_k64r3s3_st1x1_pad1x1_dil1x1_g1+bias+leaky_relu0.1",
      "leaky_relu0.1_f32_n2c20h17w15",
      "mish_f32_n2c20h17w15",
      "tanh_f64_n2c20h17w15",
      "clamp-1x1_f32_n2c20h17w15",
      "fwd_f64_n1c12h9w9_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias",
      "relu_f64_n1c12h9w9",
      "fwd_bf16_n1c12h9w9_k16r3s3_st1x1_pad1x1_dil1x1_g1+bias",
      "mul_f32_n2c20h17w15",
      "mul_f32_n2c20h17w15_channelwise",
      "bwd_hardswish_f32_n2c20h17w15",
      "bwd_hardsigmoid_f32_n2c20h17w15",
      "bwd_sigmoid_f32_n2c20h17w15",
      "bwd_gelu_tanh_f32_n2c20h17w15",
      "bwd_leaky_relu0.1_f32_n2c20h17w15",
      "channelsums_f32_n2c20h17w15",
      "channelsums_f32_n2c20h17w15_perimage",
      "transform_f32_n2c20h17w15_nchw_nChw16c",
      "transform_f32_n2c20h17w15_nChw16c_nhwc",
      "linear_f32_n4c512_k100+bias",
      "attention_f32_n2h3q17k21d16w12",
      "attention_f32_n2h3q50k50d32w12_bias3x1x50_scale1",
      "attention_f32_n2q17k21d8w5_bias17x21_scale-0.3",
      "linearattention_f32_n2h3q17k21d16w12_eps1e-15",
      "linearattention_f32_n2q50k33d8w5_eps0.1",
      "layernorm_f32_n2c20h7w5_eps1e-05",
      "rmsnorm_f32_n2c20h7w5_eps1e-05",
      "variancenorm_f32_n2c20h7w5_eps1e-05",
      "groupnorm_f32_n2c20h17w15_g4_eps1e-05",
      "groupnorm_f32_n2c20h17w15_g20_eps1e-05+silu",
      "moments_f32_n2c20h17w15",
      "normalize_f32_n2c20h17w15_eps1e-05",
      "bwd_normalize_sums_f32_n2c20h17w15_eps1e-05",
      "bwd_normalize_f32_n2c20h17w15_eps1e-05",
      "scaleshift_f32_n2c20h17w15+silu",
      "bilinear_f32_n2c20h7w5_p13q5",
      "fwd_f32_n1c4h40w40_k4r9s9_st1x1_pad4x4_dil1x1_g1",
      "chain_f32_n2c24h7w7_mul_k40r1s1_st1x1_pad0x0_dil1x1_g1+bias+relu",
  };
  std::vector<std::string> problems(std::begin(kMore), std::end(kMore));
  for (const Subject& text : kSubjects) problems.emplace_back(text.problem);
  int checked = 0;
  for (const int threads : {1, 2}) {
    const Threads scope(threads);
    for (const std::string& text : problems) {
      const Problem problem = parse_problem(text);
      for (const Algorithm& row : all_algorithms()) {
        if (!row.runs_on_cpu) continue;
        const Offer offer = row.offer(problem, cpu_device());
        if (!offer.refusal.empty()) continue;
        const auto results =
            check_primitives({row}, problem, offer.primitives, kMaxRelError, 7, cpu_device());
        for (std::size_t i = 0; i < results.size(); ++i) {
          EXPECT_EQ(results[i].failure, "") << to_string(offer.primitives[i]) << " " << text;
          ++checked;
        }
      }
    }
  }
  EXPECT_GE(checked, 100);
}

TEST(Gate, AnnouncesEachPrimitiveBeforeItRuns) {
  const Problem problem = parse_problem("relu_f32_n1c3h4w5");
  const auto primitives = offers_of(problem, all_algorithms(), cpu_device()).primitives;
  std::vector<std::size_t> announced;
  static_cast<void>(check_primitives(all_algorithms(), problem, primitives, kMaxRelError, 0, {},
                                     [&](std::size_t i) { announced.push_back(i); }));
  EXPECT_EQ(announced.size(), primitives.size());
  for (std::size_t i = 0; i < announced.size(); ++i) EXPECT_EQ(announced[i], i);
}

}  // namespace
}  // namespace torchalgo
