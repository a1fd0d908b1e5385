// SPDX-License-Identifier: BSD-3-Clause
#include "training/region.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>
#include <string>
#include <utility>

#include "all_algorithms.h"
#include "base/error.h"
#include "ir/graph_text.h"
#include "ir/view.h"
#include "planner/make_plan.h"
#include "planner/training_graph.h"
#include "planner/transforms.h"
#include "provider/cpu_device.h"
#include "provider/find_candidates.h"

namespace torchalgo {
namespace {

// A convolution, a batch norm, a ReLU and a sum with the convolution's result. The region returns
// the sum, and then the convolution's result.
constexpr const char* kGraph =
    "torchalgo graph 1\n"
    "value\tx\t2,20,8,9\tf32\nvalue\ty\t2,20,8,9\tf32\nvalue\tm\t2,20,1,1\tf32\n"
    "value\tz\t2,20,8,9\tf32\nvalue\tr\t2,20,8,9\tf32\nvalue\ts\t2,20,8,9\tf32\n"
    "node\tconv\tconv\t0\t1\tfwd_f32_n2c20h8w9_k20r3s3_st1x1_pad1x1_dil1x1_g1+bias\t\n"
    "node\tbn.moments\tmoments\t1\t2\tmoments_f32_n2c20h8w9\t\n"
    "node\tbn\tnormalize\t1,2\t3\tnormalize_f32_n2c20h8w9_eps1e-05\t\n"
    "node\trelu\trelu\t3\t4\trelu_f32_n2c20h8w9\t\n"
    "node\tadd\tadd\t4,1\t5\tadd_f32_n2c20h8w9\t\n"
    "input\t0\tnchw\noutput\t5\noutput\t1\n";

struct Model {
  at::Tensor x, weights, bias, scale, shift, mean, var;

  static Model make() {
    const auto variable = [](at::Tensor tensor) { return tensor.set_requires_grad(true); };
    return {variable(at::randn({2, 20, 8, 9})),
            variable(at::randn({20, 20, 3, 3}) * 0.1),
            variable(at::randn({20})),
            variable(at::rand({20}) + 0.5),
            variable(at::randn({20})),
            at::zeros({20}),
            at::rand({20})};
  }
  [[nodiscard]] std::vector<at::Tensor> leaves() const { return {x, weights, bias, scale, shift}; }

  [[nodiscard]] std::vector<at::Tensor> run() const {
    const at::Tensor y = at::conv2d(x, weights, bias, 1, 1);
    return {at::relu(at::batch_norm(y, scale, shift, mean, var, true, 0.1, 1e-5, false)) + y, y};
  }
};

// Returns the region with the cheapest plan if the primitives of `layout` cost nothing. Candidates
// in nhwc.bf16 are listed as on a processor that multiplies in bf16, and run on this one.
std::shared_ptr<TrainingRegion> make_region(
    Layout layout, const char* text = kGraph,
    std::vector<NodeParameters> parameters = {{0, 1}, {}, {2, 3}, {}, {}},
    const std::vector<int>& recomputed = {}, const std::vector<int>& wanted = {0}) {
  const Graph forward = parse_graph(text);
  const Graph graph = training_graph(forward, wanted, recomputed);
  Device listed = cpu_device();
  listed.bf16_isa = is_typed(layout) ? "amx" : "";
  const Candidates candidates = training_candidates(
      graph, all_algorithms(), listed, {.drop_dominated = true, .coarse_types = is_typed(layout)});
  const std::vector<Candidate> transforms =
      transform_candidates(graph, candidates, [](const Problem& problem) {
        return offers_of(problem, all_algorithms(), cpu_device()).primitives;
      });
  CostTable costs;
  for (const auto& list : candidates.by_anchor) {
    for (const Candidate& each : list) {
      const Layout dst = each.primitive.dst;
      const bool is_free =
          each.primitive.src == layout && (dst == layout || dst == untyped(layout));
      costs.costs[cost_key(each.problem, each.primitive)] = {is_free ? 1 : 1000};
    }
  }
  for (const Candidate& each : transforms) {
    costs.costs[cost_key(each.problem, each.primitive)] = {is_view(each.primitive.name) ? 1 : 10};
  }
  const Plan plan = make_plan(graph, candidates, transforms, costs).plan;
  return std::make_shared<TrainingRegion>(forward, wanted, recomputed, candidates, plan,
                                          std::move(parameters), cpu_device());
}

std::vector<at::Tensor> run(const std::shared_ptr<TrainingRegion>& region, const Model& model) {
  return TrainingRegion::run(region, {model.x},
                             {model.weights, model.bias, model.scale, model.shift},
                             {{1, model.mean, model.var, 0.1}});
}

std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs, const Model& model,
                                  bool create_graph = false) {
  std::vector<at::Tensor> of;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    at::manual_seed(static_cast<std::uint64_t>(i));
    of.push_back(at::randn(outputs[i].sizes()));
  }
  return torch::autograd::grad(outputs, model.leaves(), of, /*retain_graph=*/true, create_graph);
}

TEST(TrainingRegion, HasTheGradientsOfTorchInEveryLayout) {
  at::manual_seed(3);
  const Model model = Model::make();
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c}) {
    Model own = model, other = model;
    own.mean = model.mean.clone(), own.var = model.var.clone();
    other.mean = model.mean.clone(), other.var = model.var.clone();
    const auto found = run(make_region(layout), own), expected = other.run();
    ASSERT_EQ(found.size(), 2U);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(found[i].allclose(expected[i], 1e-4, 1e-4));
    const auto diffs = gradients(found, own), wanted = gradients(expected, other);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double error = (diffs[i] - wanted[i]).norm().item<double>();
      // The bias of a convolution before a batch norm has a gradient here, because of the sum.
      EXPECT_LT(error, 1e-4 * wanted[i].norm().item<double>()) << i << to_string(layout);
    }
    EXPECT_TRUE(own.mean.allclose(other.mean, 1e-5, 1e-6));
    EXPECT_TRUE(own.var.allclose(other.var, 1e-5, 1e-6));
  }
}

// A convolution, a batch norm and an activation, whose result the next convolution reads.
std::string chain_with(const std::string& activation) {
  return "torchalgo graph 1\n"
         "value\tx\t2,20,8,9\tf32\nvalue\ty\t2,20,8,9\tf32\nvalue\tm\t2,20,1,1\tf32\n"
         "value\tz\t2,20,8,9\tf32\nvalue\tr\t2,20,8,9\tf32\nvalue\tw\t2,20,8,9\tf32\n"
         "node\tconv\tconv\t0\t1\tfwd_f32_n2c20h8w9_k20r3s3_st1x1_pad1x1_dil1x1_g1\t\n"
         "node\tbn.moments\tmoments\t1\t2\tmoments_f32_n2c20h8w9\t\n"
         "node\tbn\tnormalize\t1,2\t3\tnormalize_f32_n2c20h8w9_eps1e-05\t\n"
         "node\tact\tact\t3\t4\t" +
         activation +
         "_f32_n2c20h8w9\t\n"
         "node\tnext\tconv\t4\t5\tfwd_f32_n2c20h8w9_k20r3s3_st1x1_pad1x1_dil1x1_g1\t\n"
         "input\t0\tnchw\noutput\t5\n";
}

std::vector<std::string> names_of_saved(const TrainingRegion& region) {
  std::vector<std::string> found;
  for (const SavedTensor& each : region.saved()) {
    if (each.value != "x") found.push_back(each.value);  // the input, in another layout
  }
  std::sort(found.begin(), found.end());
  return found;
}

TEST(TrainingRegion, HasTheSameGradientsIfAResultIsComputedAgain) {
  at::manual_seed(5);
  const auto variable = [](at::Tensor tensor) { return tensor.set_requires_grad(true); };
  const std::vector<at::Tensor> parameters = {
      variable(at::randn({20, 20, 3, 3})), variable(at::rand({20}) + 0.5),
      variable(at::randn({20})), variable(at::randn({20, 20, 3, 3}))};
  const at::Tensor x = variable(at::randn({2, 20, 8, 9})), of = at::randn({2, 20, 8, 9});
  std::vector<at::Tensor> leaves = {x};
  leaves.insert(leaves.end(), parameters.begin(), parameters.end());
  const std::vector<NodeParameters> places = {{0, -1}, {}, {1, 2}, {}, {3, -1}};
  using Names = std::vector<std::string>;
  for (const auto& [activation, saved] :
       std::map<std::string, Names>{{"relu", {"m", "r", "y"}}, {"silu", {"m", "r", "y", "z"}}}) {
    const std::string text = chain_with(activation);
    const std::vector<int> again = recomputable_values(parse_graph(text));
    EXPECT_EQ(again, std::vector<int>{4});
    for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c}) {
      const auto region = make_region(layout, text.c_str(), places);
      const auto other = make_region(layout, text.c_str(), places, again);
      EXPECT_EQ(names_of_saved(*region), saved);
      EXPECT_EQ(names_of_saved(*other), (Names{"m", "y"}));
      const auto gradients_of = [&](const std::shared_ptr<TrainingRegion>& each) {
        return torch::autograd::grad(TrainingRegion::run(each, {x}, parameters, {}), leaves, {of});
      };
      const auto found = gradients_of(other), wanted = gradients_of(region);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(found[i].allclose(wanted[i], 1e-4, 1e-4)) << i << to_string(layout);
      }
    }
  }
}

// A convolution, a SiLU, and a squeeze-and-excitation of its result with a scale from 0 to 1.
constexpr const char* kSqueezeExcite =
    "torchalgo graph 1\n"
    "value\tx\t2,20,8,9\tf32\nvalue\ty\t2,20,8,9\tf32\nvalue\tz\t2,20,8,9\tf32\n"
    "value\tmean\t2,20,1,1\tf32\nvalue\ta\t2,6,1,1\tf32\nvalue\tb\t2,6,1,1\tf32\n"
    "value\tc\t2,20,1,1\tf32\nvalue\tscale\t2,20,1,1\tf32\nvalue\tr\t2,20,8,9\tf32\n"
    "node\tconv\tconv\t0\t1\tfwd_f32_n2c20h8w9_k20r3s3_st1x1_pad1x1_dil1x1_g1+bias\t\n"
    "node\tsilu\tsilu\t1\t2\tsilu_f32_n2c20h8w9\t\n"
    "node\tpool\tpool\t2\t3\tavgpool_f32_n2c20h8w9_p1q1\t\n"
    "node\tfc1\tconv\t3\t4\tfwd_f32_n2c20h1w1_k6r1s1_st1x1_pad0x0_dil1x1_g1+bias\t\n"
    "node\trelu\trelu\t4\t5\trelu_f32_n2c6h1w1\t\n"
    "node\tfc2\tconv\t5\t6\tfwd_f32_n2c6h1w1_k20r1s1_st1x1_pad0x0_dil1x1_g1+bias\t\n"
    "node\tsigmoid\tsigmoid\t6\t7\tsigmoid_f32_n2c20h1w1\t\n"
    "node\tmul\tmul\t2,7\t8\tmul_f32_n2c20h8w9_channelwise\t\n"
    "input\t0\tnchw\noutput\t8\n";

TEST(TrainingRegion, HasTheGradientsOfASqueezeAndExcitationInEveryLayout) {
  at::manual_seed(4);
  const auto variable = [](at::Tensor tensor) { return tensor.set_requires_grad(true); };
  const at::Tensor x = variable(at::randn({2, 20, 8, 9}));
  const std::vector<at::Tensor> parameters = {
      variable(at::randn({20, 20, 3, 3}) * 0.1), variable(at::randn({20})),
      variable(at::randn({6, 20, 1, 1})),        variable(at::randn({6})),
      variable(at::randn({20, 6, 1, 1})),        variable(at::randn({20}))};
  const auto& p = parameters;
  const at::Tensor z = at::silu(at::conv2d(x, p[0], p[1], 1, 1));
  const at::Tensor hidden = at::relu(at::conv2d(z.mean({2, 3}, true), p[2], p[3]));
  const at::Tensor expected = z * at::sigmoid(at::conv2d(hidden, p[4], p[5]));
  std::vector<at::Tensor> leaves = {x};
  leaves.insert(leaves.end(), parameters.begin(), parameters.end());
  const at::Tensor of = at::randn(expected.sizes());
  const auto wanted = torch::autograd::grad({expected}, leaves, {of});
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c}) {
    const auto region =
        make_region(layout, kSqueezeExcite, {{0, 1}, {}, {}, {2, 3}, {}, {4, 5}, {}, {}});
    const auto found = TrainingRegion::run(region, {x}, parameters, {});
    EXPECT_TRUE(found[0].allclose(expected, 1e-4, 1e-4)) << to_string(layout);
    const auto diffs = torch::autograd::grad(found, leaves, {of});
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double error = (diffs[i] - wanted[i]).norm().item<double>();
      EXPECT_LT(error, 1e-4 * wanted[i].norm().item<double>()) << i << to_string(layout);
    }
  }
}

// The means and the result are images of one pixel, whose layouts differ in their names only. So
// the region's results may be views of its own tensors.
TEST(TrainingRegion, HasResultsThatMayBeChangedInPlaceUnlessTheyAreSaved) {
  constexpr const char* kPooled =
      "torchalgo graph 1\n"
      "value\tx\t2,20,8,9\tf32\nvalue\tmean\t2,20,1,1\tf32\nvalue\ty\t2,20,1,1\tf32\n"
      "node\tpool\tpool\t0\t1\tavgpool_f32_n2c20h8w9_p1q1\t\n"
      "node\tconv\tconv\t1\t2\tfwd_f32_n2c20h1w1_k20r1s1_st1x1_pad0x0_dil1x1_g1\t\n"
      "input\t0\tnchw\noutput\t2\noutput\t1\n";
  at::manual_seed(6);
  const at::Tensor x = at::randn({2, 20, 8, 9}).set_requires_grad(true);
  const at::Tensor weights = at::randn({20, 20, 1, 1}).set_requires_grad(true);
  const at::Tensor expected = at::conv2d(x.mean({2, 3}, true), weights) * 2;
  const auto wanted = torch::autograd::grad({expected.sum()}, {x, weights});
  for (const Layout layout : {Layout::kNchw, Layout::kNhwc, Layout::kNChw16c}) {
    const auto region = make_region(layout, kPooled, {{}, {0, -1}});
    const at::Tensor y = TrainingRegion::run(region, {x}, {weights}, {})[0].flatten(1).mul_(2);
    EXPECT_TRUE(y.allclose(expected.flatten(1), 1e-4, 1e-4)) << to_string(layout);
    const auto found = torch::autograd::grad({y.sum()}, {x, weights});
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(found[i].allclose(wanted[i], 1e-4, 1e-4));
    if (is_blocked(layout)) continue;  // the saved tensor is another one
    const auto results = TrainingRegion::run(region, {x}, {weights}, {});
    results[1].flatten(1).mul_(2);
    EXPECT_THROW(static_cast<void>(torch::autograd::grad({results[0].sum()}, {weights})),
                 std::exception)
        << to_string(layout);
  }
}

// The gradient of a SiLU reads what the SiLU reads, so the convolution must write it. The gradient
// of a ReLU reads the ReLU's result.
// Like PyTorch, a region keeps weights and scales for backward. It keeps no biases and no shifts.
TEST(TrainingRegion, HasTheGradientsOfTheBiasesOfItsForwardPass) {
  for (const Layout layout : {Layout::kNchw, Layout::kNChw16c}) {
    at::manual_seed(5);
    const Model model = Model::make();
    const auto wanted = gradients(model.run(), model);
    const auto outputs = run(make_region(layout), model);
    {
      const at::NoGradGuard no_grad;
      model.bias.mul_(0.5);
      model.shift.add_(3);
    }
    const auto found = gradients(outputs, model);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double error = (found[i] - wanted[i]).norm().item<double>();
      EXPECT_LT(error, 1e-4 * wanted[i].norm().item<double>()) << i << to_string(layout);
    }
  }
}

TEST(TrainingRegion, RefusesWeightsAndInputsThatWereChangedInPlace) {
  for (const int changed : {0, 1, 3}) {
    at::manual_seed(5);
    const Model model = Model::make();
    for (const bool is_region : {false, true}) {
      const auto outputs = is_region ? run(make_region(Layout::kNchw), model) : model.run();
      {
        const at::NoGradGuard no_grad;
        model.leaves()[changed].mul_(0.5);
      }
      EXPECT_THROW(static_cast<void>(gradients(outputs, model)), c10::Error)
          << changed << is_region;
    }
  }
}

TEST(TrainingRegion, KeepsTensorsInBf16AndStatisticsInF32) {
  at::manual_seed(3);
  Model own = Model::make(), other = own;
  own.mean = own.mean.clone(), own.var = own.var.clone();
  const auto region = make_region(Layout::kNhwcBf16);
  const std::vector<SavedTensor> kept = region->saved();
  for (const SavedTensor& each : kept) {
    const bool is_image = each.value != "m";  // the moments
    EXPECT_EQ(each.layout, is_image ? Layout::kNhwcBf16 : Layout::kNhwc) << each.value;
  }
  EXPECT_GE(kept.size(), 2U);
  const auto found = run(region, own), expected = other.run();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kFloat);
    const double error = (found[i] - expected[i]).norm().item<double>();
    EXPECT_LT(error, 1e-2 * expected[i].norm().item<double>()) << i;
    EXPECT_GT(error, 1e-4 * expected[i].norm().item<double>()) << i;
  }
  const auto diffs = gradients(found, own), wanted = gradients(expected, other);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(diffs[i].scalar_type(), at::kFloat);
    const double error = (diffs[i] - wanted[i]).norm().item<double>();
    EXPECT_LT(error, 3e-2 * wanted[i].norm().item<double>()) << i;
  }
  EXPECT_TRUE(own.mean.allclose(other.mean, 1e-2, 1e-2));
  EXPECT_TRUE(own.var.allclose(other.var, 1e-2, 1e-2));
}

TEST(TrainingRegion, FusesNoActivationWhoseInputIsSaved) {
  const Graph graph = training_graph(parse_graph(kSqueezeExcite), {0});
  const Candidates candidates =
      training_candidates(graph, all_algorithms(), cpu_device(), {.drop_dominated = true});
  std::set<std::string> fused;
  for (const auto& list : candidates.by_anchor) {
    for (const Candidate& candidate : list) {
      for (std::size_t i = 1; i < candidate.covers.size(); ++i) {
        fused.insert(graph.nodes[candidate.covers[i]].name);
      }
    }
  }
  EXPECT_TRUE(fused.contains("relu"));
  EXPECT_FALSE(fused.contains("silu"));
  EXPECT_FALSE(fused.contains("sigmoid"));
}

TEST(TrainingRegion, ComputesNoGradientThatNobodyNeeds) {
  Model model = Model::make();
  model.x.set_requires_grad(false);
  model.weights.set_requires_grad(false);
  const auto found = run(make_region(Layout::kNchw), model);
  const at::Tensor loss = found[0].sum();
  loss.backward();
  EXPECT_TRUE(model.scale.grad().defined());
  EXPECT_FALSE(model.weights.grad().defined());
  EXPECT_FALSE(model.x.grad().defined());
}

TEST(TrainingRegion, HasAResultWithoutGradientIfItDependsOnNoParameter) {
  constexpr const char* kBranches =
      "torchalgo graph 1\n"
      "value\tx\t2,20,8,9\tf32\nvalue\tr\t2,20,8,9\tf32\nvalue\ty\t2,20,8,9\tf32\n"
      "node\trelu\trelu\t0\t1\trelu_f32_n2c20h8w9\t\n"
      "node\tconv\tconv\t0\t2\tfwd_f32_n2c20h8w9_k20r3s3_st1x1_pad1x1_dil1x1_g1\t\n"
      "input\t0\tnchw\noutput\t2\noutput\t1\n";
  const at::Tensor x = at::randn({2, 20, 8, 9});
  const at::Tensor weights = at::randn({20, 20, 3, 3}).set_requires_grad(true);
  const auto wanted = torch::autograd::grad({at::conv2d(x, weights, {}, 1, 1).sum()}, {weights});
  const auto region = make_region(Layout::kNchw, kBranches, {{}, {0, -1}}, {}, {});
  const auto results = TrainingRegion::run(region, {x}, {weights}, {});
  EXPECT_FALSE(results[1].requires_grad());
  const auto found = torch::autograd::grad({results[0].sum()}, {weights});
  EXPECT_TRUE(found[0].allclose(wanted[0], 1e-4, 1e-4));
}

TEST(TrainingRegion, RefusesSecondDerivativesAndOtherSizes) {
  Model model = Model::make();
  const auto region = make_region(Layout::kNchw);
  EXPECT_THROW(static_cast<void>(gradients(run(region, model), model, /*create_graph=*/true)),
               std::exception);
  model.x = at::randn({1, 20, 8, 9});
  EXPECT_THROW(static_cast<void>(run(region, model)), Error);
}

TEST(TrainingRegion, KeepsNothingWithoutGradients) {
  const Model model = Model::make();
  const auto region = make_region(Layout::kNchw);
  EXPECT_FALSE(region->saved().empty());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(run(region, model)[0].requires_grad());
}

}  // namespace
}  // namespace torchalgo
