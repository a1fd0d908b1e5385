// SPDX-License-Identifier: BSD-3-Clause
// The ops as TorchScript calls them: schemas, files, errors, gradients.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/serialization/import.h>

#include <sstream>

#include "ops/settings.h"

namespace torchalgo {
namespace {

constexpr const char* kConv = "fwd_f32_n1c3h8w8_k4r3s3_st1x1_pad1x1_dil1x1_g1+bias+relu";
constexpr const char* kTransform = "transform_f32_n1c4h8w8_nhwc_nchw";

c10::IValue call(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.at(0);
}

// Weights and bias of one layer, as the ops take them.
c10::List<std::optional<at::Tensor>> layer(const at::Tensor& weights = {},
                                           const at::Tensor& bias = {}) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return c10::List<std::optional<at::Tensor>>({optional(weights), optional(bias)});
}

// Lets source of a test say torchalgo.run_conv.
struct OpsResolver : torch::jit::Resolver {
  std::shared_ptr<torch::jit::SugaredValue> resolveValue(const std::string& name,
                                                         torch::jit::GraphFunction&,
                                                         const torch::jit::SourceRange&) override {
    return name == "torchalgo" ? std::make_shared<torch::jit::BuiltinModule>(name) : nullptr;
  }
};

struct Model {
  at::Tensor weights = at::randn({4, 3, 3, 3});
  at::Tensor bias = at::randn({4});
  torch::jit::Module module = torch::jit::Module("net");

  explicit Model(const char* primitive = "aten.prepacked") {
    const auto conv = call("torchalgo::pack_conv",
                           {kConv, primitive, "nhwc", "nhwc", "net.conv", layer(weights, bias)});
    const auto transform =
        call("torchalgo::pack_op", {kTransform, "layout.aten", "nhwc", "nchw", "net.out", layer()});
    module.register_attribute("conv", conv.type(), conv);
    module.register_attribute("out", transform.type(), transform);
    module.define(R"(
      def forward(self, x):
          y = torchalgo.run_conv(x, self.conv, None, primitive="p", layer="net.conv")
          return torchalgo.transform(y, self.out, primitive="p", layer="net.out")
    )",
                  std::make_shared<OpsResolver>());
  }

  at::Tensor reference(const at::Tensor& x) const {
    return at::relu(at::conv2d(x, weights, bias, 1, 1));
  }
};

torch::jit::Module save_and_load(const torch::jit::Module& module) {
  std::stringstream file;
  module.save(file);
  return torch::jit::load(file);
}

std::string error_of(const torch::jit::Module& module, const at::Tensor& x) {
  try {
    torch::jit::Module copy = module;
    copy.forward({x});
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(Register, KeepsNoDefaultsInSchemas) {
  for (const char* name :
       {"torchalgo::pack_conv", "torchalgo::pack_op", "torchalgo::run_conv", "torchalgo::run_op",
        "torchalgo::transform", "torchalgo::run_conv_out", "torchalgo::run_op_out",
        "torchalgo::transform_out", "torchalgo::relabel", "torchalgo::join"}) {
    const auto& schema = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").schema();
    for (const auto& argument : schema.arguments()) {
      EXPECT_FALSE(argument.default_value().has_value()) << name << " " << argument.name();
    }
  }
}

TEST(Register, RunsSavesAndLoadsAsTorchScript) {
  const at::NoGradGuard no_grad;
  Model model;
  torch::jit::Module loaded = save_and_load(model.module);
  torch::jit::Module copied = model.module.deepcopy();
  reset_fallbacks();
  for (const std::int64_t batch : {1, 3}) {
    const at::Tensor x = at::randn({batch, 3, 8, 8});
    for (torch::jit::Module* module : {&model.module, &loaded, &copied}) {
      EXPECT_TRUE(module->forward({x}).toTensor().allclose(model.reference(x), 1e-4, 1e-5));
    }
  }
  EXPECT_TRUE(fallbacks().empty());
}

TEST(Register, OpsWithABufferWriteTheirPartOfItOrMakeATensor) {
  const at::NoGradGuard no_grad;
  const auto packed =
      call("torchalgo::pack_op", {"transform_f32_n1c20h3w5_nchw_nChw16c", "layout.tiled", "nchw",
                                  "nChw16c", "net.a", layer()});
  const auto in_buffer = [&](const at::Tensor& x, const at::Tensor& buffer, std::int64_t channel) {
    return call("torchalgo::transform_out", {x, packed, buffer, channel, "p", "l"}).toTensor();
  };
  const auto apart = [&](const at::Tensor& x) {
    return call("torchalgo::transform", {x, packed, "p", "l"}).toTensor();
  };
  const at::Tensor x = at::randn({1, 20, 3, 5});
  const at::Tensor buffer = at::full({1, 4, 3, 5, 16}, 7.0F);
  const at::Tensor part = in_buffer(x, buffer, 16);
  EXPECT_TRUE(part.is_alias_of(buffer));
  EXPECT_TRUE(part.equal(apart(x)));
  EXPECT_TRUE(part.equal(buffer.narrow(1, 1, 2)));
  EXPECT_TRUE(buffer.narrow(1, 0, 1).eq(7).all().item<bool>());
  EXPECT_TRUE(buffer.narrow(1, 3, 1).eq(7).all().item<bool>());
  const at::Tensor before = buffer.clone();
  for (const std::int64_t channel : {-16, 8, 48}) {  // no place for two blocks there
    const at::Tensor own = in_buffer(x, buffer, channel);
    EXPECT_FALSE(own.is_alias_of(buffer)) << channel;
    EXPECT_TRUE(own.equal(part)) << channel;
  }
  for (const at::Tensor& other : {at::randn({2, 20, 3, 5}), at::randn({1, 20, 4, 4})}) {
    const at::Tensor own = in_buffer(other, buffer, 16);
    EXPECT_FALSE(own.is_alias_of(buffer));
    EXPECT_TRUE(own.equal(apart(other)));
  }
  EXPECT_TRUE(buffer.equal(before));
}

TEST(Register, JoinReturnsTheMemoryThatItsPartsShareElseACopy) {
  const at::NoGradGuard no_grad;
  const auto packed = call("torchalgo::pack_op", {"concat_f32_n1c32x20h3w5", "view.concat",
                                                  "nChw16c", "nChw16c", "net.cat", layer()});
  const auto join = [&](const std::vector<at::Tensor>& parts, const at::Tensor& buffer) {
    return call("torchalgo::join", {c10::List<at::Tensor>(parts), packed, buffer, "p", "l"})
        .toTensor();
  };
  const at::Tensor buffer = at::randn({1, 4, 3, 5, 16});
  const std::vector<at::Tensor> parts = {buffer.narrow(1, 0, 2), buffer.narrow(1, 2, 2)};
  EXPECT_EQ(join(parts, buffer).data_ptr(), buffer.data_ptr());
  const at::Tensor copied = join({parts[0].clone(), parts[1]}, buffer);
  EXPECT_FALSE(copied.is_alias_of(buffer));
  EXPECT_TRUE(copied.equal(buffer));
  const at::Tensor two = at::randn({2, 2, 3, 5, 16});
  EXPECT_EQ(join({two, two}, buffer).sizes(), at::IntArrayRef({2, 4, 3, 5, 16}));
}

TEST(Register, StoresEachWeightOnceAndNothingPacked) {
  Model model;
  const at::Tensor weights = at::randn({512, 256, 3, 3});
  const auto conv =
      call("torchalgo::pack_conv", {"fwd_f32_n1c256h4w4_k512r3s3_st1x1_pad1x1_dil1x1_g1",
                                    "aten.prepacked", "nhwc", "nhwc", "net.conv", layer(weights)});
  model.module.setattr("conv", conv);
  std::stringstream file;
  model.module.save(file);
  const double weight_bytes = 4.0 * static_cast<double>(weights.numel());
  EXPECT_LT(static_cast<double>(file.str().size()), 1.02 * weight_bytes);
}

TEST(Register, LoadsAPrimitiveThatNoLongerExistsAndSaysSo) {
  const at::NoGradGuard no_grad;
  Model model("cpu.of_another_version");
  torch::jit::Module loaded = save_and_load(model.module);
  reset_fallbacks();
  const at::Tensor x = at::randn({1, 3, 8, 8});
  EXPECT_TRUE(loaded.forward({x}).toTensor().allclose(model.reference(x), 1e-4, 1e-5));
  ASSERT_EQ(fallbacks().count("net.conv"), 1U);
  EXPECT_EQ(fallbacks().at("net.conv").reason, "this build has no cpu.of_another_version");
}

TEST(Register, CarriesTheTextOfAnErrorThroughTorchScript) {
  const at::NoGradGuard no_grad;
  Model model;
  EXPECT_NE(error_of(model.module, at::randn({1, 3, 8, 8}).to(at::kDouble))
                .find("layer 'net.conv' was planned for Float, got Double"),
            std::string::npos);
  EXPECT_NE(error_of(model.module, at::randn({1, 3, 8, 8}).to_sparse())
                .find("runs dense tensors on the CPU or on a GPU, got a Sparse tensor on cpu"),
            std::string::npos);
}

TEST(Register, RefusesGradientsUnlessTheyAreOff) {
  Model model;
  const at::Tensor x = at::randn({1, 3, 8, 8}).requires_grad_(true);
  EXPECT_NE(error_of(model.module, x).find("planned for inference"), std::string::npos);
  EXPECT_EQ(error_of(model.module, x.detach()), "no error");
  const at::NoGradGuard no_grad;
  EXPECT_EQ(error_of(model.module, x), "no error");
  const c10::InferenceMode inference;
  EXPECT_EQ(error_of(model.module, at::randn({1, 3, 8, 8})), "no error");
}

TEST(Register, RefusesGradientsInListsAndBuffers) {
  const auto packed =
      call("torchalgo::pack_op", {"transform_f32_n1c20h3w5_nchw_nChw16c", "layout.tiled", "nchw",
                                  "nChw16c", "net.a", layer()});
  const at::Tensor x = at::randn({1, 20, 3, 5}), buffer = at::full({1, 4, 3, 5, 16}, 0.0F);
  const auto error_in = [&](const char* op, std::vector<c10::IValue> arguments) -> std::string {
    try {
      call(op, std::move(arguments));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  };
  const at::Tensor needs_grad = x.clone().requires_grad_(true);
  const at::Tensor buffer_needs_grad = buffer.clone().requires_grad_(true);
  EXPECT_NE(error_in("torchalgo::run_op", {c10::List<at::Tensor>({needs_grad}), packed, "p", "l"})
                .find("layer 'net.a' is planned for inference and has no gradient"),
            std::string::npos);
  EXPECT_NE(error_in("torchalgo::transform_out", {x, packed, buffer_needs_grad, 0, "p", "l"})
                .find("layer 'net.a' is planned for inference"),
            std::string::npos);
  EXPECT_EQ(error_in("torchalgo::transform_out", {x, packed, buffer, 0, "p", "l"}), "no error");
}

TEST(Register, ResolvesALazyNegation) {
  const at::NoGradGuard no_grad;
  const auto packed =
      call("torchalgo::pack_op", {"transform_f32_n1c20h3w5_nchw_nChw16c", "layout.tiled", "nchw",
                                  "nChw16c", "net.a", layer()});
  const at::Tensor x = at::randn({1, 20, 3, 5});
  const auto transformed = [&](const at::Tensor& tensor) {
    return call("torchalgo::transform", {tensor, packed, "p", "l"}).toTensor();
  };
  ASSERT_TRUE(at::_neg_view(x).is_neg());
  EXPECT_TRUE(transformed(at::_neg_view(x)).equal(transformed(-x)));
}

TEST(Register, TakesTheResidualLast) {
  const at::NoGradGuard no_grad;
  const at::Tensor weights = at::randn({4, 3, 1, 1});
  const auto packed =
      call("torchalgo::pack_op", {"fwd_f32_n1c3h8w8_k4r1s1_st1x1_pad0x0_dil1x1_g1+add",
                                  "aten.prepacked", "nhwc", "nhwc", "net.add", layer(weights)});
  const at::Tensor x = at::randn({1, 3, 8, 8}), residual = at::randn({1, 4, 8, 8});
  const auto dst =
      call("torchalgo::run_op", {c10::List<at::Tensor>({x, residual}), packed, "p", "net.add"});
  EXPECT_TRUE(dst.toTensor().allclose(at::conv2d(x, weights) + residual, 1e-4, 1e-5));
  EXPECT_ANY_THROW(call("torchalgo::run_op", {c10::List<at::Tensor>(), packed, "p", "net.add"}));
}

TEST(Register, RejectsAFileWhoseProblemIsNone) {
  EXPECT_ANY_THROW(
      call("torchalgo::pack_op", {"nonsense", "aten.eltwise", "nchw", "nchw", "net.x", layer()}));
}

}  // namespace
}  // namespace torchalgo
