// SPDX-License-Identifier: BSD-3-Clause
#include "view_algo/list.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "ir/view.h"
#include "profiler/check.h"
#include "provider/cpu_device.h"
#include "provider/kernel.h"
#include "provider/tensor_shape.h"

namespace torchalgo {
namespace {

const Algorithm& algorithm(std::string_view name) {
  return *find_algorithm(view_algorithms(), name);
}

TEST(ViewAlgorithms, AreViewsByName) {
  for (const Algorithm& row : view_algorithms()) EXPECT_TRUE(is_view(row.name)) << row.name;
}

TEST(Relabel, IsTheTransformWithoutMovingAnything) {
  const Algorithm& row = algorithm("view.relabel");
  int offered = 0;
  for (const Layout from : kAllLayouts) {
    for (const Layout to : kAllLayouts) {
      for (const std::int64_t n : {1, 2}) {
        for (const std::int64_t c : {1, 3, 16, 32}) {
          for (const std::int64_t h : {1, 5}) {
            TransformProblem problem;
            problem.n = n, problem.c = c, problem.h = h;
            problem.from = from, problem.to = to;
            const Offer offer = row.offer(problem, cpu_device());
            EXPECT_NE(offer.primitives.empty(), offer.refusal.empty());
            if (from == to || !offer.refusal.empty()) continue;
            const Sample sample = make_sample(problem, 3);
            const std::vector<at::Tensor> src = {to_layout(sample.src[0], from)};
            const at::Tensor dst =
                row.prepare(problem, offer.primitives[0], cpu_device()).run({{}, src, {}, {}});
            EXPECT_TRUE(dst.is_alias_of(src[0]));
            EXPECT_TRUE(at::equal(dst, to_layout(sample.src[0], to)))
                << to_string(Problem(problem));
            // Those that the next op expects, exactly.
            EXPECT_EQ(dst.strides(), at::IntArrayRef(shape_in({n, c, h, 1}, to).strides))
                << to_string(Problem(problem));
            ++offered;
          }
        }
      }
    }
  }
  EXPECT_GT(offered, 20);
}

TEST(ViewConcat, IsTheMemoryThatItsInputsShare) {
  const Problem problem = parse_problem("concat_f32_n1c32x48x20h3w5");
  const Offer offer = algorithm("view.concat").offer(problem, cpu_device());
  ASSERT_EQ(offer.refusal, "");
  ASSERT_EQ(offer.primitives.size(), 1U);
  const Primitive& primitive = offer.primitives[0];
  const at::Tensor memory = at::randn({1, 9, 3, 5, 16});
  const std::vector<at::Tensor> parts = {memory.narrow(1, 1, 2), memory.narrow(1, 3, 3),
                                         memory.narrow(1, 6, 2)};
  const Kernel kernel = algorithm("view.concat").prepare(problem, primitive, cpu_device());
  const at::Tensor joined = kernel.run({{}, parts, {}, {}});
  EXPECT_EQ(joined.data_ptr(), parts[0].data_ptr());
  EXPECT_TRUE(at::equal(joined, memory.narrow(1, 1, 7)));
  const std::vector<at::Tensor> apart = {parts[0], parts[1].clone(), parts[2]};
  const at::Tensor copied = kernel.run({{}, apart, {}, {}});
  EXPECT_FALSE(copied.is_alias_of(memory));
  EXPECT_TRUE(at::equal(copied, joined));
}

TEST(ViewSlice, IsTheMemoryOfThePart) {
  const auto offered = [](const char* text) {
    return algorithm("view.slice").offer(parse_problem(text), cpu_device()).primitives.size();
  };
  EXPECT_EQ(offered("slice_f32_n1c80h3w5_k32from16"), 2U);
  EXPECT_EQ(offered("slice_f32_n1c70h3w5_k22from48"), 2U);  // to the end
  EXPECT_EQ(offered("slice_f32_n1c70h3w5_k20from32"), 1U);  // its last block holds others
  EXPECT_EQ(offered("slice_f32_n1c70h3w5_k32from8"), 1U);
  for (const char* text : {"slice_f32_n1c80h3w5_k32from16", "slice_f32_n1c70h3w5_k22from48"}) {
    const Problem problem = parse_problem(text);
    const Sample sample = make_sample(problem, 3);
    for (const Primitive& primitive :
         algorithm("view.slice").offer(problem, cpu_device()).primitives) {
      const std::vector<at::Tensor> src = {to_layout(sample.src[0], primitive.src)};
      const at::Tensor dst =
          algorithm("view.slice").prepare(problem, primitive, cpu_device()).run({{}, src, {}, {}});
      EXPECT_TRUE(dst.is_alias_of(src[0]));
      const auto& slice = std::get<SliceProblem>(problem);
      const at::Tensor part = sample.src[0].narrow(1, slice.begin, slice.k);
      EXPECT_TRUE(at::equal(dst, to_layout(part, primitive.dst))) << text;
    }
  }
}

TEST(ViewAlgorithms, RefuseWithAReason) {
  const auto refusal = [](const Algorithm& row, const char* problem) {
    return row.offer(parse_problem(problem), cpu_device()).refusal;
  };
  const char* const relu = "relu_f32_n1c32h3w5";
  EXPECT_EQ(refusal(algorithm("view.concat"), relu), "needs a concatenation");
  EXPECT_EQ(refusal(algorithm("view.slice"), relu), "needs a slice");
  EXPECT_EQ(refusal(algorithm("view.relabel"), relu), "needs a change of layout");
  EXPECT_EQ(refusal(algorithm("view.concat"), "concat_f32_n2c32x32h3w5"), "needs n = 1, got 2");
  EXPECT_EQ(refusal(algorithm("view.concat"), "concat_f16_n1c32x32h3w5"), "needs f32, got f16");
  EXPECT_EQ(refusal(algorithm("view.concat"), "concat_f32_n1c20x32h3w5"),
            "needs multiples of 16 channels in all inputs but the last");
  EXPECT_EQ(refusal(algorithm("view.concat"), "concat_f32_n1c32x32h3w5_shuffle2"),
            "needs channels that stay as they are");
  EXPECT_EQ(refusal(algorithm("view.slice"), "slice_f32_n2c32h3w5_k16from0"), "needs n = 1, got 2");
  EXPECT_EQ(refusal(algorithm("view.relabel"), "transform_f32_n1c32h2w1_nchw_nhwc"),
            "needs elements in the same order in nchw and nhwc");
  EXPECT_EQ(refusal(algorithm("view.relabel"), "transform_f32_n1c20h1w1_nchw_nChw16c"),
            "needs elements in the same order in nchw and nChw16c");
}

}  // namespace
}  // namespace torchalgo
