// SPDX-License-Identifier: BSD-3-Clause
#include "import/import.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/freeze_module.h>

#include <map>
#include <string>

#include "base/error.h"
#include "import/read_layer.h"

namespace torchalgo {
namespace {

using torch::jit::Module;

// A frozen module with parameters `weight` [4, 4, 3, 3], `vector` [4] (positive), `line` [4, 4, 3].
Module frozen_module(const std::string& forward) {
  Module module("Net");
  module.register_parameter("weight", at::rand({4, 4, 3, 3}), false);
  module.register_parameter("vector", at::rand({4}).add(0.5), false);
  module.register_parameter("line", at::rand({4, 4, 3}), false);
  module.define(forward + "\n");
  return torch::jit::freeze_module(module);
}

std::map<std::string, std::string> problems(const Graph& graph) {
  std::map<std::string, std::string> found;
  for (const Node& node : graph.nodes) {
    found[node.name] = node.problem ? to_string(*node.problem) : node.note;
  }
  return found;
}

Graph graph_of(const std::string& forward) {
  return import_graph(frozen_module(forward), {at::rand({1, 4, 8, 8})}).graph;
}

constexpr const char* kConv = "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1";

TEST(Import, CountsCallsOutsideOfAnyModule) {
  const auto found = problems(graph_of(R"(
    def forward(self, x):
        y = torch.relu(torch.conv2d(x, self.weight, None, 1, 1))
        return torch.relu(torch.conv2d(y, self.weight, None, 1, 1)))"));
  // The owner of a constant named "weight" at the root is the root, which has no name.
  EXPECT_EQ(found.at("conv2d_0"), kConv);
  EXPECT_EQ(found.at("conv2d_1"), kConv);
  EXPECT_EQ(found.at("relu_1"), "relu_f32_n1c4h8w8");
}

TEST(Import, LeavesALoopThatIsTooLongToUnroll) {
  const auto found = problems(graph_of(R"(
    def forward(self, x):
        for i in range(5000):
            x = torch.relu(x) * 0.5
        return torch.conv2d(x, self.weight, None, 1, 1))"));
  EXPECT_EQ(found.size(), 2U);
  EXPECT_EQ(found.at("loop_0"), "");
  EXPECT_EQ(found.at("conv2d_0"), kConv);
}

TEST(Import, PlansNothingThatSharesMemoryWithWhatIsWritten) {
  const auto found = problems(graph_of(R"(
    def forward(self, x):
        y = torch.conv2d(x, self.weight, None, 1, 1)
        view = y.view([4, 64])
        view[0].zero_()
        return torch.relu(y) + torch.relu(x))"));
  EXPECT_NE(found.at("conv2d_0").find("in place"), std::string::npos);
  EXPECT_NE(found.at("relu_0").find("in place"), std::string::npos);
  EXPECT_EQ(found.at("relu_1"), "relu_f32_n1c4h8w8");
}

TEST(Import, DoesNotTrustAListThatABranchMayChange) {
  const auto found = problems(graph_of(R"(
    def forward(self, x):
        parts = [x, torch.relu(x)]
        if bool(x.sum() > 100.0):
            parts.append(x)
        return torch.cat(parts, 1))"));
  EXPECT_EQ(found.at("cat_0"), "its list is not fixed");
}

TEST(Import, ReadsTheWeightsThatTheProblemNeeds) {
  const Module frozen = frozen_module(R"(
    def forward(self, x):
        y = torch.conv1d(x.mean(2), self.line, self.vector)
        z = torch.batch_norm(x, self.vector, None, self.vector, self.vector, False, 0.1, 0.01, False)
        return y, torch.addmm(self.line[0][0], x.mean([2, 3]), self.line[0]), z)");
  const ImportedGraph imported = import_graph(frozen, {at::rand({1, 4, 8, 8})});
  std::map<std::string, OpWeights> found;
  for (std::size_t n = 0; n < imported.nodes.size(); ++n) {
    const Node& node = imported.graph.nodes[n];
    if (node.problem) found[node.kind] = weights_of(imported.nodes[n], *node.problem);
  }
  const at::Tensor vector = found.at("aten::conv1d").bias;
  EXPECT_EQ(found.at("aten::conv1d").weights.sizes().vec(),
            (std::vector<std::int64_t>{4, 4, 1, 3}));
  const at::Tensor scale = vector.div(vector.add(0.01).sqrt());
  EXPECT_TRUE(at::allclose(found.at("aten::batch_norm").weights, scale));
  EXPECT_TRUE(at::allclose(found.at("aten::batch_norm").bias, vector.mul(scale).neg()));
  EXPECT_EQ(found.at("aten::addmm").weights.sizes().vec(), (std::vector<std::int64_t>{3, 4}));
}

TEST(Import, ReadsOneScaleFactorAsThatOfBothDimensions) {
  const auto found = problems(graph_of(R"(
    def forward(self, x):
        return torch.__interpolate(x, None, 2.0, "nearest", None, None))"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.begin()->second, "nearest_f32_n1c4h8w8_x2x2") << found.begin()->first;
}

TEST(Import, ReadsDefaultsOfForward) {
  const Graph graph = import_graph(frozen_module(R"(
    def forward(self, x, scale: float = 2.0):
        return torch.conv2d(x * scale, self.weight, None, 1, 1))"),
                                   {at::rand({1, 4, 8, 8})})
                          .graph;
  EXPECT_EQ(graph.inputs.size(), 1U);
  EXPECT_EQ(problems(graph).at("conv2d_0"), kConv);
}

TEST(Import, RefusesAModuleWithoutForward) {
  EXPECT_THROW(static_cast<void>(import_graph(Module("Empty"), {})), Error);
}

}  // namespace
}  // namespace torchalgo
