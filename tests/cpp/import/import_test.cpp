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

// A frozen module with parameters `weight` [4, 4, 3, 3], `vector` [4] (positive), `line` [4, 4, 3],
// `cube` [4, 4, 3, 3, 3], `matrix` [4, 4].
Module frozen_module(const std::string& forward) {
  Module module("Net");
  module.register_parameter("weight", at::rand({4, 4, 3, 3}), false);
  module.register_parameter("vector", at::rand({4}).add(0.5), false);
  module.register_parameter("line", at::rand({4, 4, 3}), false);
  module.register_parameter("cube", at::rand({4, 4, 3, 3, 3}), false);
  module.register_parameter("matrix", at::rand({4, 4}), false);
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

struct Reading {
  const char* result;  // of forward(self, x), x is [1, 4, 8, 8]
  const char* read;    // the problem of the last op, or the reason why it is not planned
};

constexpr Reading kReadings[] = {
    {"torch.conv2d(x, self.weight, self.vector, 2, 1)",
     "fwd_f32_n1c4h8w8_k4r3s3_st2x2_pad1x1_dil1x1_g1+bias"},
    {"torch.conv2d(x, self.weight, None, 1, [1, 2], [1, 2])",
     "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad1x2_dil1x2_g1"},
    {"torch.conv2d(x, self.weight[:, :2], None, 1, 1, 1, 2)",
     "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g2"},
    {"torch.conv2d(x, self.weight[:, :, :, :2], None, 1, 'same')",
     "fwd_f32_n1c4h8w8_k4r3s2_st1x1_pad1x0x1x1_dil1x1_g1"},
    {"torch.conv2d(torch.pad(x, [1, 0, 2, 1]), self.weight)",
     "fwd_f32_n1c4h8w8_k4r3s3_st1x1_pad2x1x1x0_dil1x1_g1"},
    {"torch.conv2d(x[0], self.weight)", "its input has no batch dimension"},
    {"torch.conv2d(x, torch.relu(x)[:, :, :3, :3])", "weight is not a constant"},
    {"torch.conv1d(torch.pad(x[:, :, 0], [1, 0]), self.line)",
     "fwd_f32_n1c4h1w8_k4r1s3_st1x1_pad0x1x0x0_dil1x1_g1"},
    {"torch.conv3d(x.unsqueeze(2), self.cube, None, 1, 1)",
     "fwd_f32_n1c4d1h8w8_k4t3r3s3_st1x1x1_pad1x1x1_dil1x1x1_g1"},
    {"torch.conv3d(x.unsqueeze(2), self.cube[:, :, :2], None, 1, 'same')",
     "its padding is uneven in 3-D"},
    {"torch.conv_transpose1d(x[:, :, 0], self.line, None, 2)",
     "bwd_data_f32_n1c4h1w17_k4r1s3_st1x2_pad0x0_dil1x1_g1"},
    {"torch.conv_transpose2d(x, self.weight, self.vector, 2, 1, 1)",
     "bwd_data_f32_n1c4h16w16_k4r3s3_st2x2_pad1x1_dil1x1_g1+bias"},
    {"torch.conv_transpose3d(x.unsqueeze(2), self.cube)",
     "bwd_data_f32_n1c4d3h10w10_k4t3r3s3_st1x1x1_pad0x0x0_dil1x1x1_g1"},
    {"torch.convolution(x, self.weight, None, [1, 1], [1, 1], [1, 1], True, [0, 0], 1)",
     "bwd_data_f32_n1c4h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1"},
    {"torch._convolution_mode(x, self.weight, None, [1, 1], 'same', [1, 1], 1)", kConv},
    {"torch.linear(x[:, :, 0, 0], self.matrix, self.vector)", "linear_f32_n1c4_k4+bias"},
};

TEST(Import, ReadsLayers) {
  for (const auto& [result, read] : kReadings) {
    const Graph graph = graph_of(std::string("def forward(self, x):\n  return ") + result);
    const Node& last = graph.nodes.back();
    EXPECT_EQ(last.problem ? to_string(*last.problem) : last.note, read) << result;
  }
}

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

TEST(Import, KnowsWherePermutesMoveNothing) {
  const Module frozen = frozen_module(R"(
    def forward(self, x):
        a = torch.conv2d(x, self.weight).permute([0, 2, 3, 1]).contiguous()
        b = torch.sin(a).permute([0, 3, 1, 2])
        return torch.conv2d(b, self.weight), x.permute([0, 2, 3, 1]), b.size(2), x[0].size(2))");
  const at::Tensor x = at::rand({1, 4, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  const Graph graph = import_graph(frozen, {x}).graph;
  EXPECT_EQ(graph.input_layouts, std::vector<Layout>{Layout::kNhwc});
  std::map<std::string, const Node*> found;
  for (const Node& node : graph.nodes) found[node.name] = &node;
  EXPECT_EQ(found.at("permute_0")->reads, Layout::kNhwc);
  EXPECT_EQ(found.at("permute_1")->makes, Layout::kNhwc);
  EXPECT_EQ(found.at("permute_2")->reads, Layout::kNchw);
  EXPECT_TRUE(found.at("size_0")->reads_shape_only);
  EXPECT_FALSE(found.at("size_1")->reads_shape_only);
}

TEST(Import, ReadsAttentionThatTakesAnyStrides) {
  const Module frozen = frozen_module(R"(
    def forward(self, x, mask):
        t = torch.sin(x).permute([0, 3, 1, 2])
        u = torch.cos(x).permute([0, 3, 1, 2])
        v = torch.exp(x).permute([0, 3, 1, 2])
        a = torch.matmul(torch.softmax(torch.matmul(t, t.transpose(2, 3)) * 0.5 + mask, -1), t)
        b = torch.matmul(torch.softmax(torch.matmul(u, u.transpose(2, 3)) + self.matrix, -1), u)
        k = torch.relu(v).transpose(2, 3)
        p = torch.matmul(torch.relu(u), torch.matmul(k, torch.pad(v, [0, 1], "constant", 1.0)))
        return a, b, p[..., :-1] / (p[..., -1:] + 1e-6))");
  const Graph graph = import_graph(frozen, {at::rand({1, 4, 8, 8}), at::rand({4, 4})}).graph;
  std::map<std::string, const Node*> found;
  for (const Node& node : graph.nodes) found[node.name] = &node;
  const auto problem = [&](const char* name) { return to_string(found.at(name)->problem.value()); };
  EXPECT_EQ(problem("attention_0"), "attention_f32_n1h8q4k4d8w8_bias4x4_scale0.5");
  EXPECT_EQ(found.at("attention_0")->inputs.size(), 4U);
  EXPECT_EQ(problem("attention_1"), "attention_f32_n1h8q4k4d8w8_bias4x4_scale1");
  EXPECT_EQ(found.at("attention_1")->inputs.size(), 3U);  // a constant is no data flow
  EXPECT_EQ(problem("linear_attention_0"), "linearattention_f32_n1h8q4k4d8w8_eps1e-06");
  // As an image in nhwc, it would be copied for the attention.
  EXPECT_EQ(found.at("permute_0")->makes, Layout::kNchw);
}

TEST(Import, RefusesAModuleWithoutForward) {
  EXPECT_THROW(static_cast<void>(import_graph(Module("Empty"), {})), Error);
}

}  // namespace
}  // namespace torchalgo
