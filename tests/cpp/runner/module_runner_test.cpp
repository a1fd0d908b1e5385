// SPDX-License-Identifier: BSD-3-Clause
#include "runner/module_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/import.h>

#include <string>

namespace torchalgo {
namespace {

torch::jit::Module optimized() {
  return torch::jit::load(std::string(TORCHALGO_TEST_DATA) + "/golden/small_0.1.0.pt");
}

at::Tensor input(std::int64_t size) {
  return at::linspace(-1, 1, 3 * size * size).reshape({1, 3, size, size});
}

TEST(ModuleRunner, GivesTheBitsOfForward) {
  const at::NoGradGuard no_grad;
  torch::jit::Module module = optimized();
  const ModuleRunner runner(module);
  for (int i = 0; i < 2; ++i) {
    const at::Tensor x = input(24);
    EXPECT_TRUE(at::equal(runner.forward({x}).toTensor(), module.forward({x}).toTensor()));
  }
}

// Makes a module of two plans with the names that python/torchalgo/_run/shape_dispatch.py gives.
TEST(ModuleRunner, RunsThePlanThatTheModuleChooses) {
  torch::jit::Module joined("joined");
  for (const char* const part : {"plan_0", "plan_1"}) {
    torch::jit::Module plan(part);
    plan.define(std::string("def forward(self, x):\n  return x + ") + part[5] + "\n");
    joined.register_module(part, plan);
  }
  joined.define(R"(
def nearest(self, x) -> int:
  return x.size(0) - 1
def forward(self, x):
  if self.nearest(x) == 0:
    return self.plan_0.forward(x)
  assert self.nearest(x) == 1
  return self.plan_1.forward(x)
)");
  const ModuleRunner runner(joined);
  EXPECT_EQ(runner.forward({at::ones({1})}).toTensor().sum().item<float>(), 1);
  EXPECT_EQ(runner.forward({at::ones({2})}).toTensor().sum().item<float>(), 4);
  EXPECT_THROW(static_cast<void>(runner.forward({at::ones({3})})), std::exception);
}

// The runner of an op of torch takes any sizes, so it must not run where `nearest` gives -1.
TEST(ModuleRunner, RaisesForSizesForWhichItsOnlyPlanIsNotRight) {
  torch::jit::Module joined = torch::jit::Module("joined");
  const torch::jit::Module plan = optimized();
  joined.register_module("plan_0", plan);
  joined.define(R"(
def nearest(self, x) -> int:
  return 0 if x.size(0) == 1 else -1
def forward(self, x):
  assert self.nearest(x) == 0
  return self.plan_0.forward(x)
)");
  const at::NoGradGuard no_grad;
  const ModuleRunner runner(joined);
  EXPECT_TRUE(runner.forward({input(24)}).isTensor());
  EXPECT_THROW(static_cast<void>(runner.forward({input(24).expand({2, 3, 24, 24})})),
               std::exception);
}

TEST(ModuleRunner, TakesAnyModule) {
  torch::jit::Module scale("scale");
  scale.define("def forward(self, x, by: int):\n  return x * by\n");
  EXPECT_EQ(ModuleRunner(scale).forward({at::ones({2}), 3}).toTensor().sum().item<float>(), 6);
}

}  // namespace
}  // namespace torchalgo
