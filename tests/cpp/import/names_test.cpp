// SPDX-License-Identifier: BSD-3-Clause
#include "import/names.h"

#include <ATen/ops/rand.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/freeze_module.h>

#include <string>
#include <utility>
#include <vector>

#include "import/import.h"

namespace torchalgo {
namespace {

using torch::jit::Module;
using Tensors = std::vector<std::pair<const char*, at::Tensor>>;
using Parts = std::vector<std::pair<const char*, Module>>;

// Makes a module whose forward(self, x) returns `result`.
Module make_part(const char* class_name, const std::string& result, const Tensors& weights = {},
                 const Parts& parts = {}) {
  Module part(class_name);
  for (const auto& [name, tensor] : weights) part.register_parameter(name, tensor, false);
  for (const auto& [name, inner] : parts) part.register_module(name, inner);
  part.define("def forward(self, x):\n  return " + result + "\n");
  return part;
}

Module make_conv(const at::Tensor& weight = at::rand({4, 4, 1, 1})) {
  return make_part("Conv", "torch.conv2d(x, self.weight)", {{"weight", weight}});
}

Module make_relu() {
  return make_part("__torch__.torch.nn.modules.activation.ReLU", "torch.relu(x)");
}

Module make_block() {
  return make_part("Block", "self.act.forward(self.conv.forward(x)) + x", {},
                   {{"conv", make_conv()}, {"act", make_relu()}});
}

Graph graph_of_net(const std::string& result) {
  const at::Tensor weight = at::rand({4, 4, 1, 1});
  const Tensors own = {{"weight", weight}};
  const Parts parts = {
      {"conv", make_conv()},
      {"act", make_relu()},
      {"block", make_block()},
      {"outer",
       make_part("Outer", "torch.sin(self.inner.forward(x))", {}, {{"inner", make_block()}})},
      {"stages", make_part("ModuleList", "x", {}, {{"0", make_conv()}, {"1", make_block()}})},
      {"first", make_conv(weight)},
      {"second", make_conv(weight.clone())},
      {"x", make_relu()},
      {"mine", make_part("ReLU", "torch.relu(x)")},
      {"odd", make_part("__torch__.torch.nn.modules.conv.Odd", "torch.relu(x)")},
      {"norm", make_part("Norm",
                         "torch.batch_norm(x, None, None, self.running_mean, self.running_var, "
                         "False, 0.1, 0.01, False)",
                         {{"running_mean", at::rand({4})}, {"running_var", at::rand({4})}})},
      {"scaled", make_part("Scaled", "torch.conv2d(x, self.weight * 2.0)", own)},
      {"twice",
       make_part("Twice", "torch.conv2d(torch.conv2d(x, self.weight * 2.0), self.weight * 3.0)",
                 own)},
      {"wrap", make_part("Wrap", "self.act.forward(torch.conv2d(x, self.weight * 2.0))", own,
                         {{"act", make_relu()}})}};
  const Module net = make_part("Net", result, {{"weight", at::rand({4, 4, 1, 1})}}, parts);
  return import_graph(torch::jit::freeze_module(net), {at::rand({2, 4, 9, 6})}).graph;
}

struct Naming {
  const char* result;  // of forward(self, x)
  const char* names;   // of the nodes
};

constexpr Naming kNamings[] = {
    // Ops outside of any module are counted.
    {"torch.relu(torch.relu(x) + x)", "relu_0 add_0 relu_1"},
    {"torch.relu_(x + 0.5)", "add_0 relu_0"},
    {"torch.conv2d(torch.conv2d(x, self.weight), self.weight)", "conv2d_0 conv2d_1"},
    {"torch.conv2d(x, self.weight * 2.0)", "conv2d_0"},
    {"torch.convolution(x, self.weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)",
     "convolution_0"},
    {"torch._convolution(x, self.weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, "
     "False, False, False)",
     "conv2d_0"},
    {"torch._convolution(x, self.weight, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1, False, "
     "False, False, False)",
     "conv_transpose2d_0"},
    {"torch.__interpolate(x, 7, None, \"nearest\", None, None)", "interpolate_0"},
    {"torch.split(x, 2, 3)", "split_0"},

    // A layer has the path of its module, another op has its own name behind it.
    {"self.conv.forward(self.conv.forward(x))", "conv conv#1"},
    {"self.norm.forward(x)", "norm"},
    {"self.block.forward(self.block.forward(x))",
     "block.conv block.act block.add block.conv#1 block.act#1 block.add#1"},
    {"self.outer.forward(x)", "outer.inner.conv outer.inner.act outer.inner.add outer.sin"},

    // The module of an activation is one op if it is PyTorch's.
    {"self.act.forward(self.act.forward(x))", "act act#1"},
    {"self.mine.forward(self.mine.forward(x))", "mine.relu mine.relu#1"},
    {"self.odd.forward(x)", "odd.relu"},

    // A weight tells whose layer it is, unless a module with an equal weight is called.
    {"torch.conv2d(x, self.conv.weight)", "conv"},
    {"torch.conv2d(x, self.outer.inner.conv.weight)", "outer.inner.conv"},
    {"self.second.forward(self.first.forward(x))", "first second"},
    {"self.first.forward(self.second.forward(x))", "second first"},
    {"getattr(self.stages, \"1\").forward(getattr(self.stages, \"0\").forward(x))",
     "stages.0 stages.1.conv 1.act 1.add"},

    // A computed weight has no owner.
    {"self.scaled.forward(x)", "scaled"},
    {"self.twice.forward(x)", "twice.conv2d twice.conv2d#1"},
    {"self.wrap.forward(x)", "wrap.conv2d wrap.act"},
};

TEST(NameNodes, ByModulesAndOps) {
  for (const auto& [result, names] : kNamings) {
    std::vector<std::string> found;
    for (const Node& node : graph_of_net(result).nodes) found.push_back(node.name);
    EXPECT_EQ(fmt::format("{}", fmt::join(found, " ")), names) << result;
  }
}

constexpr Naming kValueNamings[] = {
    {"torch.relu(x)", "x relu_0"},
    {"torch.max(x, 1)", "x max_0 max_0:1"},
    {"self.x.forward(x)", "x:input x"},  // a module has the name of the argument
};

TEST(NameValues, ByTheirNodesAndTheArguments) {
  for (const auto& [result, names] : kValueNamings) {
    std::vector<std::string> found;
    for (const Value& value : graph_of_net(result).values) found.push_back(value.name);
    EXPECT_EQ(fmt::format("{}", fmt::join(found, " ")), names) << result;
  }
}

}  // namespace
}  // namespace torchalgo
