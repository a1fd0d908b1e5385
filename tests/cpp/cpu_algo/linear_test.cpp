// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/remainder.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "cpu_algo/list.h"
#include "cpu_algo/row_check.h"
#include "provider/find_candidates.h"
#include "provider/packing.h"

namespace torchalgo {
namespace {

const Primitive kPrimitive = {"cpu.linear", Layout::kNchw, Layout::kNchw};
const Primitive kPanels = {"cpu.linear.panels", Layout::kNchw, Layout::kNchw};
const Primitive kBf16 = {"cpu.linear.wbf16", Layout::kNchw, Layout::kNchw};
const Primitive kF16 = {"cpu.linear.wf16", Layout::kNchw, Layout::kNchw};
const std::vector<Primitive> kAll = {kPrimitive, kPanels, kBf16, kF16};

void expect_exact(const std::string& text) {
  const Problem problem = parse_problem(text);
  for (const std::string& isa : isas()) {
    const Algorithm row = cpu_algorithm("cpu.linear", isa);
    const Offer offer = row.offer(problem, cpu_device());
    ASSERT_EQ(offer.refusal, "") << text;
    const bool has_short_rows = std::get<LinearProblem>(problem).c <= 2048;
    EXPECT_EQ(offer.primitives,
              has_short_rows ? kAll : (std::vector<Primitive>{kPrimitive, kBf16, kF16}));
    const auto results = check_primitives({row}, problem, offer.primitives, 1e-6);
    for (const CheckResult& result : results)
      EXPECT_EQ(result.failure, "") << text << " in the " << isa << " build";
  }
}

// A result [n, k] of `src` by the row of `isa`; k and c are those of `weights`.
at::Tensor run_row(const std::string& isa, const at::Tensor& src, const LayerWeights& weights,
                   const std::string& activation, const Primitive& primitive = kPrimitive) {
  const Problem problem = parse_problem(
      fmt::format("linear_f32_n{}c{}_k{}{}{}", src.size(0), src.size(1), weights.weights.size(0),
                  weights.bias.defined() ? "+bias" : "", activation));
  const Algorithm row = cpu_algorithm("cpu.linear", isa);
  const Kernel kernel = row.prepare(problem, primitive, cpu_device());
  const at::Tensor dst = at::full({src.size(0), weights.weights.size(0)}, std::nanf(""));
  return kernel.run({pack(kernel, {weights}), {&src, 1}, {}, dst, nullptr});
}

// Whole numbers from -3 to 3, whose sums are exact in any order.
at::Tensor whole_numbers(at::IntArrayRef sizes, int seed) {
  at::Tensor numbers = at::full(sizes, 0.0F);
  const at::Tensor all = at::arange(seed, seed + numbers.numel());
  return numbers.copy_(at::remainder(all.mul(all).add(all.mul(5)), 7).sub(3).view(sizes));
}

// The same values in the middle of memory that is NaN elsewhere.
at::Tensor among_nans(const at::Tensor& tensor) {
  constexpr std::int64_t kBeside = 64;
  const at::Tensor memory = at::full({tensor.numel() + 2 * kBeside}, std::nanf(""));
  return memory.narrow(0, kBeside, tensor.numel()).view(tensor.sizes()).copy_(tensor);
}

bool has_same_values(const at::Tensor& a, const at::Tensor& b) {
  return a.eq(b).logical_or_(a.ne(a).logical_and_(b.ne(b))).all().item<bool>();
}

// Returns the weights [k, c] as `primitive` stores them: rounded, in f32.
at::Tensor as_stored(const at::Tensor& weights, const Primitive& primitive) {
  if (primitive == kBf16) return weights.to(at::kBFloat16).to(at::kFloat);
  if (primitive != kF16) return weights;
  const at::Tensor largest = weights.abs().amax(1, true);
  const at::Tensor exponent = std::get<1>(at::frexp(largest)).to(at::kFloat).neg().add(8);
  return weights.ldexp(exponent).to(at::kHalf).to(at::kFloat).ldexp(exponent.neg());
}

TEST(Linear, AgreesWithF64OnAnySizesInEveryBuild) {
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 13, 32}) {
    for (const int c : {1, 15, 16, 17, 100, 300}) {
      for (const int k : {1, 7, 8, 17}) expect_exact(fmt::format("linear_f32_n{}c{}_k{}", n, c, k));
    }
  }
}

TEST(Linear, AgreesWithF64OnEveryNumberOfRowsThatATileMayHave) {
  for (const int n : {1, 2, 3, 4, 5, 6, 8}) {
    for (int k = 1; k <= 10; ++k) expect_exact(fmt::format("linear_f32_n{}c143_k{}+bias", n, k));
  }
}

TEST(Linear, FusesTheBiasAndEveryActivation) {
  for (const char* bias : {"", "+bias"}) {
    for (const char* activation : {"", "+relu", "+relu6", "+hardswish", "+silu", "+sigmoid",
                                   "+hardsigmoid", "+leaky_relu0.1", "+clamp-1x2"}) {
      expect_exact(fmt::format("linear_f32_n1c70_k37{}{}", bias, activation));
      expect_exact(fmt::format("linear_f32_n9c70_k37{}{}", bias, activation));
    }
  }
}

TEST(Linear, AgreesWithF64WhereSeveralThreadsDivideIt) {
  const Threads threads(2);
  expect_exact("linear_f32_n1c4100_k67+bias+relu");
  expect_exact("linear_f32_n7c1000_k301+bias+silu");
}

TEST(Linear, GivesTheSameBitsOnAnyNumberOfThreadsInAnyBatchAndFromPanels) {
  const Problem problem = parse_problem("linear_f32_n32c3001_k205+bias+silu");
  const Sample sample = make_sample(problem, 3);
  const LayerWeights& own = sample.weights[0];
  for (const std::string& isa : isas()) {
    for (const Primitive& primitive : kAll) {
      const std::string what = to_string(primitive) + " " + isa;
      const LayerWeights stored = {as_stored(own.weights, primitive), own.bias};
      const Threads one(1);
      const at::Tensor expected = run_row(isa, sample.src[0], stored, "+silu");
      for (const int count : {1, 2, 3}) {
        const Threads threads(count);
        EXPECT_TRUE(run_row(isa, sample.src[0], own, "+silu", primitive).equal(expected))
            << what << " on " << count << " threads";
      }
      for (const int n : {1, 2, 3, 4, 5, 8}) {
        const at::Tensor part =
            run_row(isa, sample.src[0].narrow(0, 0, n), own, "+silu", primitive);
        EXPECT_TRUE(part.equal(expected.narrow(0, 0, n))) << what << " in a batch of " << n;
      }
    }
  }
}

TEST(Linear, RoundsWeightsToTheNearestNumberAndTiesToEven) {
  const at::Tensor weights = at::arange(-2048.0, 2048.0).view({16, 256}).to(at::kFloat).mul(3);
  const at::Tensor src = at::eye(256);  // the results are the weights
  for (const std::string& isa : isas()) {
    for (const Primitive& primitive : {kBf16, kF16}) {
      const at::Tensor dst = run_row(isa, src, {weights, {}}, "", primitive);
      EXPECT_TRUE(dst.t().equal(as_stored(weights, primitive))) << to_string(primitive) << isa;
    }
  }
}

TEST(Linear, StoresHugeAndTinyWeightsAsFiniteNumbersWithAllDigits) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const std::vector<float> rows = {kLargest, 1e30F, 65520, 1e-4F, 1e-30F, 1e-34F};
  const auto k = static_cast<std::int64_t>(rows.size());
  const at::Tensor weights = at::full({k, 20}, 0.0F);
  for (std::int64_t row = 0; row < k; ++row) {
    // The row's other weights are a little smaller, and one has 1000 times less.
    weights[row].copy_(at::arange(20).mul(0.01).add(0.8).mul(rows[static_cast<std::size_t>(row)]));
    weights[row][3].fill_(rows[static_cast<std::size_t>(row)]);
    weights[row][7].fill_(rows[static_cast<std::size_t>(row)] / -1000);
  }
  const at::Tensor src = at::eye(20);  // the results are the weights
  for (const std::string& isa : isas()) {
    for (const Primitive& primitive : {kBf16, kF16}) {
      const at::Tensor dst = run_row(isa, src, {weights, {}}, "", primitive);
      const at::Tensor error = dst.t().sub(weights).div(weights).abs();
      const double bound = primitive == kF16 ? 0x1p-11 : 0x1p-8;
      EXPECT_LE(error.max().item<double>(), bound) << to_string(primitive) << " " << isa << "\n"
                                                   << dst.t();
    }
  }
}

TEST(Linear, ScalesARowThatHoldsInfinityByItsLargestFiniteWeight) {
  const at::Tensor weights = at::full({2, 3}, 1e30F);
  weights[0][0] = std::numeric_limits<float>::infinity();
  weights[1][1] = std::nanf("");
  const at::Tensor src = at::full({1, 3}, 0.0F);
  src[0][2] = 1;
  src[0][0] = 1;
  for (const std::string& isa : isas()) {
    const at::Tensor dst = run_row(isa, src, {weights, {}}, "", kF16);
    EXPECT_EQ(dst[0][0].item<float>(), std::numeric_limits<float>::infinity()) << isa;
    EXPECT_TRUE(std::isnan(dst[0][1].item<float>())) << isa;
    src[0][0] = 0;  // 0 * infinity
    EXPECT_TRUE(std::isnan(run_row(isa, src, {weights, {}}, "", kF16)[0][0].item<float>())) << isa;
    src[0][0] = 1;
  }
}

TEST(Linear, PassesNanInfinityAndSignedZeroOnAsTorchDoes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::string& isa : isas()) {
    for (const int c : {5, 35}) {
      const at::Tensor src = whole_numbers({7, c}, 1);
      const LayerWeights weights = {whole_numbers({21, c}, 2), whole_numbers({21}, 3)};
      src[1][c - 1] = std::nanf("");
      src[2][0] = kInfinity;
      src[3][c / 2] = -kInfinity;
      src[4].fill_(-0.0F);
      src[5].fill_(0);
      weights.weights[4][c - 1] = std::nanf("");
      weights.weights[6][c - 1] = kInfinity;
      weights.weights[9].fill_(-0.0F);
      weights.weights[20][0] = -kInfinity;
      weights.bias[9] = -0.0F;
      weights.bias[10] = std::nanf("");
      weights.bias[11] = kInfinity;
      const at::Tensor expected = at::linear(src.to(at::kDouble), weights.weights.to(at::kDouble),
                                             weights.bias.to(at::kDouble))
                                      .to(at::kFloat);
      for (const Primitive& primitive : kAll) {
        const at::Tensor dst = run_row(isa, src, weights, "", primitive);
        EXPECT_TRUE(has_same_values(dst, expected))
            << to_string(primitive) << " " << isa << " " << c << "\n"
            << dst - expected;
        EXPECT_TRUE(
            has_same_values(run_row(isa, src, weights, "+relu", primitive), expected.relu()))
            << to_string(primitive) << " " << isa;
      }
    }
  }
}

TEST(Linear, ReadsNothingBesideItsTensors) {
  for (const std::string& isa : isas()) {
    for (const int n : {1, 3, 6}) {
      for (const int c : {1, 13, 33}) {
        const at::Tensor src = whole_numbers({n, c}, 1);
        const LayerWeights weights = {whole_numbers({9, c}, 2), whole_numbers({9}, 3)};
        const at::Tensor expected = at::linear(src, weights.weights, weights.bias);
        const LayerWeights enclosed = {among_nans(weights.weights), among_nans(weights.bias)};
        for (const Primitive& primitive : kAll) {
          EXPECT_TRUE(run_row(isa, among_nans(src), enclosed, "", primitive).equal(expected))
              << to_string(primitive) << " " << isa << " n " << n << " c " << c;
        }
      }
    }
  }
}

TEST(Linear, HoldsNoWeightsOfItsOwnButPanelsUnlessTheModelsAreStrided) {
  const Problem problem = parse_problem("linear_f32_n2c20_k9+bias");
  const Algorithm row = cpu_algorithm("cpu.linear");
  const LayerWeights plain = {whole_numbers({9, 20}, 1), whole_numbers({9}, 2)};
  const Kernel by_rows = row.prepare(problem, kPrimitive, cpu_device());
  EXPECT_EQ(packed_bytes(by_rows), 0);
  EXPECT_EQ(held_bytes(pack(by_rows, {plain}), {plain}), 0);
  EXPECT_EQ(packed_bytes(row.prepare(problem, kPanels, cpu_device())), 16 * 32 * 4);
  EXPECT_EQ(packed_bytes(row.prepare(problem, kBf16, cpu_device())), 16 * 32 * 2);
  EXPECT_EQ(packed_bytes(row.prepare(problem, kF16, cpu_device())), 16 * 32 * 2 + 16 * 4);
  const LayerWeights strided = {plain.weights.t().contiguous().t(), plain.bias};
  const at::Tensor src = whole_numbers({2, 20}, 3);
  const std::string isa = cpu_device().isa;
  for (const Primitive& primitive : kAll) {
    EXPECT_TRUE(run_row(isa, src, strided, "", primitive).equal(run_row(isa, src, plain, "")));
  }
}

TEST(Linear, MayAbsorbTheActivationThatFollows) {
  const std::vector<std::int64_t> sizes = {1, 16};
  Graph graph;
  graph.values = {{"x", sizes, DType::kF32, -1},
                  {"fc", sizes, DType::kF32, 0},
                  {"relu", sizes, DType::kF32, 1}};
  graph.nodes = {{"fc", "aten::linear", {0}, {1}, parse_problem("linear_f32_n1c16_k16+bias"), ""},
                 {"relu", "aten::relu", {1}, {2}, parse_problem("relu_f32_n1c16h1w1"), ""}};
  graph.inputs = {0};
  graph.input_layouts = {Layout::kNchw};
  graph.outputs = {2};
  const Candidates candidates = find_candidates(graph, prepared_algorithms(), cpu_device());
  ASSERT_EQ(candidates.by_anchor[0].size(), 4U);
  const Candidates coarse =
      find_candidates(graph, prepared_algorithms(), cpu_device(), {.coarse_types = true});
  EXPECT_EQ(coarse.by_anchor[0].size(), 8U);
  const Candidate& both = candidates.by_anchor[0][2];
  EXPECT_EQ(to_string(both.problem), "linear_f32_n1c16_k16+bias+relu");
  EXPECT_EQ(both.covers, (std::vector<int>{0, 1}));
  EXPECT_EQ(both.primitive, kPrimitive);
}

TEST(Linear, RefusesWithAReason) {
  const auto refusal = [](const std::string& text) {
    return cpu_algorithm("cpu.linear").offer(parse_problem(text), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("linear_f32_n32c16_k16"), "");
  EXPECT_EQ(refusal("linear_f32_n33c16_k16"),
            "reads weights for few inputs: needs a batch of 1 to 32, got 33");
  LinearProblem empty;
  empty.n = 0;
  EXPECT_EQ(cpu_algorithm("cpu.linear").offer(empty, cpu_device()).refusal,
            "reads weights for few inputs: needs a batch of 1 to 32, got 0");
  EXPECT_EQ(refusal("linear_f64_n1c16_k16"), "needs f32, got f64");
  EXPECT_EQ(refusal("linear_f32_n1c16_k16+relu+bias"), "needs an epilogue bias, activation");
  EXPECT_EQ(refusal("relu_f32_n1c16h8w8"), "needs a linear layer");
}

}  // namespace
}  // namespace torchalgo
