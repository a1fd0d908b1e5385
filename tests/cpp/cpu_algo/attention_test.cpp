// SPDX-License-Identifier: BSD-3-Clause
#include "cpu_algo/kernels/attention.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "cpu_algo/row_check.h"

namespace torchalgo {
namespace {

struct Case {
  std::int64_t images, heads, queries, keys, depth, width, parts;
};

constexpr Case kCases[] = {{1, 1, 1, 1, 1, 1, 1},     {1, 2, 7, 9, 3, 5, 1},
                           {2, 3, 49, 49, 16, 32, 2}, {1, 4, 20, 77, 24, 24, 3},
                           {3, 1, 12, 33, 8, 64, 4},  {1, 1, 65, 130, 17, 100, 5}};

kernels::HeadStrides strides_of(const at::Tensor& tensor) {
  return {tensor.stride(0), tensor.stride(1), tensor.stride(2), tensor.stride(3)};
}

at::Tensor nans(std::int64_t bytes) {
  return at::full({bytes / 4}, std::numeric_limits<float>::quiet_NaN(), at::kFloat);
}

// Returns a random tensor of these sizes whose dimension `last` is adjacent in memory.
at::Tensor random_with(at::IntArrayRef sizes, std::int64_t last) {
  std::vector<std::int64_t> turned = sizes.vec();
  std::swap(turned[static_cast<std::size_t>(last)], turned[3]);
  return at::randn(turned).transpose(last, 3);
}

kernels::HeadMatrices matrices_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& dst) {
  kernels::HeadMatrices heads;
  heads.q = q.const_data_ptr<float>();
  heads.k = k.const_data_ptr<float>();
  heads.v = v.const_data_ptr<float>();
  heads.dst = dst.mutable_data_ptr<float>();
  heads.q_strides = strides_of(q);
  heads.k_strides = strides_of(k);
  heads.v_strides = strides_of(v);
  heads.dst_strides = strides_of(dst);
  heads.images = q.size(0), heads.heads = q.size(1), heads.queries = q.size(2);
  heads.keys = k.size(2), heads.depth = q.size(3), heads.width = v.size(3);
  return heads;
}

/// Runs the kernel of `isa` into a tensor whose dimension `last` is adjacent in memory.
at::Tensor attend(const std::string& isa, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v, const at::Tensor& bias, float scale, std::int64_t parts,
                  std::int64_t last) {
  std::vector<std::int64_t> sizes = q.sizes().vec();
  sizes[3] = v.size(3);
  at::Tensor dst = random_with(sizes, last);
  kernels::Attention attention{matrices_of(q, k, v, dst)};
  if (bias.defined()) {
    attention.bias = bias.const_data_ptr<float>();
    attention.bias_strides = strides_of(bias);
  }
  attention.scale = scale;
  attention.parts = parts;
  const at::Tensor scratch = nans(TORCHALGO_PICK_KERNEL(isa, attention_scratch_bytes)(attention));
  TORCHALGO_PICK_KERNEL(isa, run_attention)
  (attention, 0, attention.images * attention.heads * parts, scratch.mutable_data_ptr());
  return dst;
}

at::Tensor expected(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& bias, double scale) {
  at::Tensor scores = at::matmul(q.to(at::kDouble), k.to(at::kDouble).transpose(-2, -1)) * scale;
  if (bias.defined()) scores = scores + bias.to(at::kDouble);
  return at::matmul(at::softmax(scores, -1), v.to(at::kDouble));
}

TEST(Attention, AgreesWithF64ForAnyStrides) {
  at::manual_seed(1);  // else the data depend on the tests before this one
  for (const Case& c : kCases) {
    for (const std::int64_t last : {1, 2, 3}) {
      const at::Tensor q = random_with({c.images, c.heads, c.queries, c.depth}, last);
      const at::Tensor k = random_with({c.images, c.heads, c.keys, c.depth}, last);
      const at::Tensor v = random_with({c.images, c.heads, c.keys, c.width}, last);
      const at::Tensor one = at::randn({1, c.heads, 1, c.keys});
      for (const at::Tensor& bias :
           {at::Tensor(), one.expand({c.images, c.heads, c.queries, c.keys}),
            random_with({c.images, c.heads, c.queries, c.keys}, last)}) {
        for (const std::string& isa : isas()) {
          const at::Tensor found = attend(isa, q, k, v, bias, 0.7F, c.parts, last);
          EXPECT_TRUE(found.to(at::kDouble).allclose(expected(q, k, v, bias, 0.7F), 1e-5, 5e-6))
              << isa << " queries " << c.queries << " keys " << c.keys << " last " << last;
        }
      }
    }
  }
}

TEST(Attention, IsRightForLargeScoresAndWhereABiasHidesKeys) {
  const at::Tensor q = at::randn({1, 2, 9, 4}) * 100, k = at::randn({1, 2, 21, 4});
  const at::Tensor v = at::randn({1, 2, 21, 6});
  at::Tensor bias = at::full({1, 2, 9, 21}, 0.0F);
  bias.slice(3, 5, 17).fill_(-std::numeric_limits<float>::infinity());
  for (const std::string& isa : isas()) {
    const at::Tensor found = attend(isa, q, k, v, bias, 1, 1, 3);
    EXPECT_TRUE(found.to(at::kDouble).allclose(expected(q, k, v, bias, 1), 1e-3, 1e-4)) << isa;
  }
}

TEST(Attention, ARowWithANanOrWithoutAnyKeyIsNan) {
  const at::Tensor q = at::randn({1, 1, 8, 4}), k = at::randn({1, 1, 19, 4});
  const at::Tensor v = at::randn({1, 1, 19, 5});
  at::Tensor bias = at::full({1, 1, 8, 19}, 0.0F);
  bias.select(2, 1).fill_(-std::numeric_limits<float>::infinity());
  bias.select(2, 3).select(2, 18).fill_(std::numeric_limits<float>::quiet_NaN());
  bias.select(2, 4).select(2, 0).fill_(std::numeric_limits<float>::quiet_NaN());
  bias.select(2, 6).select(2, 2).fill_(std::numeric_limits<float>::infinity());
  for (const std::string& isa : isas()) {
    const at::Tensor found = attend(isa, q, k, v, bias, 1, 2, 3);
    EXPECT_TRUE(at::equal(found.isnan(), expected(q, k, v, bias, 1).isnan())) << isa;
    EXPECT_EQ(found.isnan().sum().item<std::int64_t>(), 4 * 5) << isa;
  }
}

TEST(LinearAttention, AgreesWithF64ForAnyStrides) {
  at::manual_seed(1);
  for (const Case& c : kCases) {
    for (const std::int64_t last : {1, 2, 3}) {
      const at::Tensor q = random_with({c.images, c.heads, c.queries, c.depth}, last);
      const at::Tensor k = random_with({c.images, c.heads, c.keys, c.depth}, last);
      const at::Tensor v = random_with({c.images, c.heads, c.keys, c.width}, last);
      const at::Tensor q64 = q.to(at::kDouble).relu(), k64 = k.to(at::kDouble).relu();
      const at::Tensor sums = at::matmul(k64.transpose(-2, -1), v.to(at::kDouble));
      const at::Tensor divisors = at::matmul(q64, k64.sum(2, true).transpose(-2, -1)) + 0.25;
      const at::Tensor expected = at::matmul(q64, sums) / divisors;
      for (const std::string& isa : isas()) {
        const at::Tensor dst = random_with({c.images, c.heads, c.queries, c.width}, last);
        kernels::LinearAttention attention{matrices_of(q, k, v, dst)};
        attention.epsilon = 0.25F;
        const at::Tensor scratch =
            nans(TORCHALGO_PICK_KERNEL(isa, linear_attention_scratch_bytes)(attention));
        TORCHALGO_PICK_KERNEL(isa, run_linear_attention)
        (attention, 0, c.images * c.heads, scratch.mutable_data_ptr());
        EXPECT_TRUE(dst.to(at::kDouble).allclose(expected, 1e-5, 5e-6))
            << isa << " queries " << c.queries << " keys " << c.keys << " last " << last;
      }
    }
  }
}

TEST(Attention, IsAnAlgorithmThatTheGatePasses) {
  for (const char* text : {"attention_f32_n2h3q49k49d16w32_bias3x49x49",
                           "attention_f32_n1h4q196k77d24w24_bias1x77_scale1",
                           "attention_f32_n3h1q1k1d1w1_bias3x1x1x1"}) {
    expect_correct("cpu.attention", parse_problem(text), 1, 1e-5);
  }
  expect_correct("cpu.linear_attention",
                 parse_problem("linearattention_f32_n2h3q200k33d16w32_eps1e-15"), 1, 1e-5);
}

// Returns the results of a primitive on the sample's tensors, each with its dimension `last`
// adjacent in memory.
at::Tensor run_with(const Algorithm& algorithm, const Problem& problem, std::int64_t last) {
  const at::NoGradGuard no_grad;
  const auto turned = [&](const at::Tensor& tensor) {
    return tensor.dim() == 4 ? tensor.transpose(last, 3).contiguous().transpose(last, 3) : tensor;
  };
  std::vector<at::Tensor> src;
  for (const at::Tensor& tensor : make_sample(problem, 1).src) src.push_back(turned(tensor));
  const Device device = cpu_device();
  const Primitive primitive = algorithm.offer(problem, device).primitives.at(0);
  const Kernel kernel = algorithm.prepare(problem, primitive, device);
  const at::Tensor workspace = empty_bytes(kernel.primitive.workspace_bytes, at::kCPU);
  const at::Tensor dst = turned(empty_result(problem, Layout::kNchw));
  return kernel.run({{}, src, {}, dst, workspace.data_ptr()});
}

TEST(Attention, GivesTheSameBitsForAnyStridesAndThreads) {
  const std::pair<const char*, const char*> cases[] = {
      {"cpu.attention", "attention_f32_n2h2q65k50d16w24_bias2x1x50"},
      {"cpu.linear_attention", "linearattention_f32_n2h3q200k33d16w32_eps0.1"}};
  for (const auto& [name, text] : cases) {
    const Problem problem = parse_problem(text);
    for (const std::string& isa : isas()) {
      const Algorithm algorithm = cpu_algorithm(name, isa);
      const at::Tensor expected = run_with(algorithm, problem, 3);
      for (const int count : {1, 2, 5}) {
        const Threads threads(count);
        for (const std::int64_t last : {1, 2, 3}) {
          EXPECT_TRUE(run_with(algorithm, problem, last).equal(expected))
              << text << " " << isa << " threads " << count << " last " << last;
        }
      }
    }
  }
}

TEST(Attention, RefusesOtherTypesAndTheOtherKind) {
  const auto refusal = [](const char* name, const char* text) {
    return cpu_algorithm(name).offer(parse_problem(text), cpu_device()).refusal;
  };
  EXPECT_EQ(refusal("cpu.attention", "attention_f64_n1q9k9d8w8"), "needs f32, got f64");
  EXPECT_EQ(refusal("cpu.attention", "linearattention_f32_n1q9k9d8w8_eps0.1"),
            "needs attention with softmax");
  EXPECT_EQ(refusal("cpu.linear_attention", "attention_f32_n1q9k9d8w8"),
            "needs attention without softmax");
}

TEST(LinearAttention, ANanStaysANan) {
  at::Tensor q = at::randn({1, 1, 9, 4}), k = at::randn({1, 1, 19, 4}),
             v = at::randn({1, 1, 19, 5});
  q.select(2, 3).fill_(std::numeric_limits<float>::quiet_NaN());
  for (const std::string& isa : isas()) {
    const at::Tensor dst = at::zeros({1, 1, 9, 5});
    kernels::LinearAttention attention{matrices_of(q, k, v, dst)};
    attention.epsilon = 0.25F;  // else a query without positive features divides 0 by 0
    const at::Tensor scratch =
        nans(TORCHALGO_PICK_KERNEL(isa, linear_attention_scratch_bytes)(attention));
    TORCHALGO_PICK_KERNEL(isa, run_linear_attention)(attention, 0, 1, scratch.mutable_data_ptr());
    EXPECT_EQ(dst.isnan().sum().item<std::int64_t>(), 5) << isa;
    EXPECT_TRUE(dst.select(2, 3).isnan().all().item<bool>()) << isa;
  }
}

}  // namespace
}  // namespace torchalgo
