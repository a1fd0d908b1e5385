// SPDX-License-Identifier: BSD-3-Clause
#include "import/read_op.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/freeze_module.h>

#include <cstddef>
#include <string>

#include "import/import.h"
#include "import/read_layer.h"

namespace torchalgo {
namespace {

using torch::jit::Module;

// x and y are [2, 4, 9, 6]. The members are `v`, `u` [4] (`u` is positive), `k1` [4, 4, 1, 1] and
// `image` [2, 4, 9, 6]. The values of `on`, `k` and `mode` are not known at import.
ImportedGraph import_op(const std::string& result) {
  Module module("Net");
  module.register_parameter("v", at::rand({4}), false);
  module.register_parameter("u", at::rand({4}).add(0.5), false);
  module.register_parameter("k1", at::rand({4, 4, 1, 1}), false);
  module.register_parameter("image", at::rand({2, 4, 9, 6}), false);
  const bool is_body = result.find("return") != std::string::npos;
  module.define(
      "def forward(self, x, y, on: bool = False, k: int = 2, mode: str = \"nearest\"):\n  " +
      ((is_body ? "" : "return ") + result) + "\n");
  return import_graph(torch::jit::freeze_module(module),
                      {at::rand({2, 4, 9, 6}), at::rand({2, 4, 9, 6})});
}

struct Reading {
  const char* result;  // of forward, or its whole body
  const char* read;    // the problem of the last op, or the reason why it is not planned
};

constexpr const char* kNoReason = "";  // no user would expect that the op is planned

void check(const Reading& reading) {
  const ImportedGraph imported = import_op(reading.result);
  const Node& last = imported.graph.nodes.back();
  EXPECT_EQ(last.problem ? to_string(*last.problem) : last.note, reading.read) << reading.result;
}

constexpr Reading kMaxPools[] = {
    {"torch.max_pool2d(x, [3, 2], [2, 1], [1, 0], [2, 1])",
     "maxpool_f32_n2c4h9w6_r3s2_st2x1_pad1x0_dil2x1"},
    {"torch.max_pool2d(x, [3, 2])", "maxpool_f32_n2c4h9w6_r3s2_st3x2_pad0x0_dil1x1"},
    {"torch.max_pool2d(x, 2, 2, 1, 1, True)", "maxpool_f32_n2c4h9w6_r2s2_st2x2_pad1x1_dil1x1_ceil"},
    // A window that would begin after the image does not count.
    {"torch.max_pool2d(x, 1, [9, 6], 0, 1, True)",
     "maxpool_f32_n2c4h9w6_r1s1_st9x6_pad0x0_dil1x1_ceil"},
    {"torch.max_pool2d(x.double(), 2)", "maxpool_f64_n2c4h9w6_r2s2_st2x2_pad0x0_dil1x1"},
    {"torch.max_pool2d(x, k)", "kernel_size is not a constant"},
    {"torch.max_pool2d(x, [x.size(2), x.size(3)])", "kernel_size is not a constant"},
    {"torch.max_pool2d(x, 2, k)", "stride is not a constant"},
    {"torch.max_pool2d(x, 6, 2, k)", "padding is not a constant"},
    {"torch.max_pool2d(x, 2, 2, 0, k)", "dilation is not a constant"},
    {"torch.max_pool2d(x, 2, 2, 0, 1, on)", "ceil_mode is not a constant"},
    {"torch.max_pool2d(x[0], 2)", "its rank is 3"},
    {"torch.max_pool1d(x[0], 2)", kNoReason},
    {"torch.max_pool2d_with_indices(x, 2)[0]", kNoReason},
    {"torch.adaptive_max_pool2d(x, [1, 1])[0]", kNoReason},
};

constexpr Reading kAveragePools[] = {
    {"torch.avg_pool2d(x, [3, 2], [2, 1], [1, 0])", "avgpool_f32_n2c4h9w6_r3s2_st2x1_pad1x0"},
    {"torch.avg_pool2d(x, [3, 2])", "avgpool_f32_n2c4h9w6_r3s2_st3x2_pad0x0"},
    {"torch.avg_pool2d(x, 2, 2, 1, True)", "avgpool_f32_n2c4h9w6_r2s2_st2x2_pad1x1_ceil"},
    {"torch.avg_pool2d(x, 2, 2, 1, False, False)",
     "avgpool_f32_n2c4h9w6_r2s2_st2x2_pad1x1_exclpad"},
    {"torch.avg_pool2d(x, 2, 2, 1, True, False)",
     "avgpool_f32_n2c4h9w6_r2s2_st2x2_pad1x1_ceil_exclpad"},
    {"torch.avg_pool2d(x, 2, 2, 0, False, True, 4)", "it has a divisor_override"},
    {"torch.avg_pool2d(x, [3, 2], k)", "stride is not a constant"},
    {"torch.avg_pool2d(x, 6, 2, k)", "padding is not a constant"},
    {"torch.avg_pool2d(x, 2, 2, 1, on)", "ceil_mode is not a constant"},
    {"torch.avg_pool2d(x, 2, 2, 1, False, on)", "count_include_pad is not a constant"},
    {"torch.avg_pool2d(x[0], 2)", "its rank is 3"},
    {"torch.avg_pool1d(x[0], 2)", kNoReason},
    {"torch.avg_pool3d(x, 2)", kNoReason},

    // A window that is the image is a pooling to one pixel.
    {"torch.avg_pool2d(x, [x.size(2), x.size(3)])", "avgpool_f32_n2c4h9w6_p1q1"},
    {"torch.avg_pool2d(x, [x.size(-2), x.size(-1)], [1, 1])", "avgpool_f32_n2c4h9w6_p1q1"},
    {"torch.avg_pool2d(x, [x.size(2), x.size(3)], [1, 1], 1)", "kernel_size is not a constant"},
    {"torch.avg_pool2d(x, [x.size(2), x.size(3)], [1, 1], 0, False, True, 4)",
     "it has a divisor_override"},
    {"torch.avg_pool2d(x, [y.size(2), y.size(3)])", "kernel_size is not a constant"},
    {"torch.avg_pool2d(x, [x.size(3), x.size(2) - 3])", "kernel_size is not a constant"},
    {"torch.avg_pool2d(x, [x.size(2), 6])", "kernel_size is not a constant"},
    {"torch.avg_pool2d(x[0], [x.size(2), x.size(3)])", "its rank is 3"},

    // The sizes need not divide those of the image.
    {"torch.adaptive_avg_pool2d(x, [1, 1])", "avgpool_f32_n2c4h9w6_p1q1"},
    {"torch.adaptive_avg_pool2d(x, 4)", "avgpool_f32_n2c4h9w6_p4q4"},
    {"torch.adaptive_avg_pool2d(x, [4, 5])", "avgpool_f32_n2c4h9w6_p4q5"},
    {"torch.adaptive_avg_pool2d(x, [12, 7])", "avgpool_f32_n2c4h9w6_p12q7"},
    {"torch.adaptive_avg_pool2d(x, [k, k])", "avgpool_f32_n2c4h9w6_p2q2"},
    {"torch.adaptive_avg_pool2d(x, [x.size(2) // 2, x.size(3)])", "avgpool_f32_n2c4h9w6_p4q6"},
    {"torch.adaptive_avg_pool2d(x, [x.size(2) - 8, x.size(3)])", "avgpool_f32_n2c4h9w6_p1q6"},
    {"torch.adaptive_avg_pool2d(x, [x.size(2) - 8, x.size(3) - 5])",
     "output_size is not a constant"},
    {"torch.adaptive_avg_pool2d(x[0], 1)", "its rank is 3"},
    {"torch.adaptive_avg_pool2d(x.unsqueeze(2), 1)", "its rank is 5"},

    {"torch.mean(x, [2, 3], True)", "avgpool_f32_n2c4h9w6_p1q1"},
    {"torch.mean(x, [3, 2], True)", "avgpool_f32_n2c4h9w6_p1q1"},
    {"torch.mean(x, [-1, 2], True)", "avgpool_f32_n2c4h9w6_p1q1"},
    {"torch.mean(x)", kNoReason},
    {"torch.mean(x, [2, 3])", kNoReason},
    {"torch.mean(x, [2], True)", kNoReason},
    {"torch.mean(x, [1, 2, 3], True)", kNoReason},
    {"torch.mean(x, [k, 3], True)", "dim is not a constant"},
    {"torch.mean(x, [2, 3], on)", "keepdim is not a constant"},
    {"torch.mean(x, [2, 3], True, dtype=7)", "it changes the dtype"},  // 7 is float64
    {"torch.mean(x[0], [1, 2], True)", "its rank is 3"},
};

constexpr Reading kActivations[] = {
    {"torch.relu(x)", "relu_f32_n2c4h9w6"},
    {"torch.relu(x.double())", "relu_f64_n2c4h9w6"},
    {"torch.relu(x.half())", "relu_f16_n2c4h9w6"},
    {"torch.relu(x.int())", "tensors of Int are not planned"},
    {"torch.relu(x[0])", "relu_f32_n4c9h1w6"},
    {"torch.relu(x[0, 0])", "its rank is 2"},
    {"torch.relu(x.unsqueeze(0))", "its rank is 5"},
    {"torch.relu(x[:0])", "a tensor of it is empty"},
    {"torch.silu(x)", "silu_f32_n2c4h9w6"},
    {"torch.gelu(x)", "gelu_f32_n2c4h9w6"},
    {"torch.gelu(x, approximate=\"tanh\")", "gelu_tanh_f32_n2c4h9w6"},
    {"torch.celu(x)", kNoReason},
    {"torch.prelu(x, self.v)", kNoReason},

    {"torch.hardtanh(x, 0, 6)", "relu6_f32_n2c4h9w6"},
    {"torch.hardtanh(x, -1.0, 1.0)", "clamp-1x1_f32_n2c4h9w6"},
    {"torch.hardtanh(x, -1.0, float(k))", "max_val is not a constant"},
    {"torch.clamp(x, 0.0)", "relu_f32_n2c4h9w6"},
    {"torch.clamp(x, 0.5)", kNoReason},
    {"torch.clamp(x, None, 0.5)", kNoReason},
    {"torch.clamp(x, 0.0, 6.0)", "relu6_f32_n2c4h9w6"},
    {"torch.clamp(x, -2, 3)", "clamp-2x3_f32_n2c4h9w6"},
    {"torch.clamp(x, -0.0, 3.0)", "clamp0x3_f32_n2c4h9w6"},
    {"torch.clamp(x, -1.0, -0.0)", "clamp-1x0_f32_n2c4h9w6"},
    {"torch.clamp(x, 0.5, 2.0)", kNoReason},    // a kernel would change the zeros behind the last
    {"torch.clamp(x, -2.0, -1.0)", kNoReason},  // channel of a block
    {"torch.clamp(x, -1.0, 1000000.0)", "clamp-1x1000000_f32_n2c4h9w6"},
    {"torch.clamp(x, -1.0, 2000000.0)", kNoReason},
    {"torch.clamp(x, -2000000.0, 1.0)", kNoReason},
    {"torch.clamp(x, float(k), 3.0)", "min is not a constant"},
    {"torch.clamp_min(x, 0)", "relu_f32_n2c4h9w6"},
    {"torch.clamp_min(x, 0.5)", kNoReason},
    {"torch.leaky_relu(x, 0.1)", "leaky_relu0.1_f32_n2c4h9w6"},
    {"torch.leaky_relu(x, 2000000.0)", "negative_slope is larger than 1000000"},
    {"torch.leaky_relu(x, float(k))", "negative_slope is not a constant"},
    {"torch.elu(x)", "elu1_f32_n2c4h9w6"},
    {"torch.elu(x, 0.5)", "elu0.5_f32_n2c4h9w6"},
    {"torch.elu(x, -0.0)", "elu0_f32_n2c4h9w6"},
    {"torch.elu(x, 2000000.0)", "alpha is larger than 1000000"},
    {"torch.elu(x, 1.0, 2.0)", "its scales are not 1"},
    {"torch.elu(x, 1.0, 1.0, 2.0)", "its scales are not 1"},
};

constexpr Reading kSums[] = {
    {"x + y", "add_f32_n2c4h9w6"},
    {"x + x", "add_f32_n2c4h9w6"},
    {"x[0] + y[0]", "add_f32_n4c9h1w6"},
    {"torch.add(x, y, alpha=1.0)", "add_f32_n2c4h9w6"},
    {"torch.add(x, y, alpha=2)", "alpha is not 1"},
    {"torch.add(x, y, alpha=k)", "alpha is not a constant"},
    {"x + 1.0", kNoReason},
    {"x + y[:1]", "its operands differ in shape"},
    {"x + y[:, :1]", "its operands differ in shape"},
    {"x + y[:, :, :1, :1]", "its operands differ in shape"},
    {"x + y[0]", "its operands differ in shape"},
    {"x + y.double()", "its operands differ in shape"},
    {"x + self.image", "an operand is a constant or an attribute"},
    {"x[0, 0] + y[0, 0]", "its rank is 2"},
    {"x.unsqueeze(0) + y.unsqueeze(0)", "its rank is 5"},
    {"x - y", "sub_f32_n2c4h9w6"},
    {"torch.rsub(x, y)", "sub_f32_n2c4h9w6"},
    {"torch.sub(x, y, alpha=2)", "alpha is not 1"},

    {"x * y", "mul_f32_n2c4h9w6"},
    {"x * 2.0", kNoReason},
    {"x / y", kNoReason},
    {"x * torch.sigmoid(y[:, :, :1, :1])", "mul_f32_n2c4h9w6_channelwise"},
    {"torch.sigmoid(y[:, :, :1, :1]) * x", "mul_f32_n2c4h9w6_channelwise"},
    {"torch.sigmoid(x[:, :, :1, :1]) * torch.sigmoid(y[:, :, :1, :1])", "mul_f32_n2c4h1w1"},
    {"x * torch.sigmoid(y[:1, :, :1, :1])", "its operands differ in shape"},
    {"x * torch.sigmoid(y[:, :1, :1, :1])", "its operands differ in shape"},
    {"x * torch.sigmoid(y[:, :, :, :1])", "its operands differ in shape"},
    {"x * torch.sigmoid(y[:, :, :1, :1]).double()", "its operands differ in shape"},
    {"x[0] * torch.sigmoid(y[0, :, :, :1])", "its operands differ in shape"},
    {"x * self.image", "an operand is a constant or an attribute"},
};

constexpr Reading kChannelOps[] = {
    {"torch.cat([x, y], 1)", "concat_f32_n2c4x4h9w6"},
    {"torch.cat([x, y[:, :3]], -3)", "concat_f32_n2c4x3h9w6"},
    {"torch.cat([x, y], 2)", "it does not join channels"},
    {"torch.cat([x, y], k)", "dim is not a constant"},
    {"torch.cat([x, y.double()], 1)", "its operands differ in dtype"},
    {"torch.cat([x, self.image], 1)", "an operand is a constant or an attribute"},
    {"torch.cat([x[0], y[0]], 1)", "its rank is 3"},

    {"torch.narrow(x, 1, 1, 2)", "slice_f32_n2c4h9w6_k2from1"},
    {"torch.narrow(x, -3, -3, 2)", "slice_f32_n2c4h9w6_k2from1"},
    {"torch.narrow(x, 2, 1, 2)", kNoReason},
    {"torch.narrow(x, k, 1, 2)", "dim is not a constant"},
    {"torch.narrow(x, 1, k, 1)", "start is not a constant"},
    {"torch.narrow(x, 1, 1, k)", "length is not a constant"},
    {"x[:, 1:3]", "slice_f32_n2c4h9w6_k2from1"},
    {"x[:, 1:]", "slice_f32_n2c4h9w6_k3from1"},
    {"x[:, -3:-1]", "slice_f32_n2c4h9w6_k2from1"},
    {"x[:, -9:2]", "slice_f32_n2c4h9w6_k2from0"},
    {"x[:, 2:9]", "slice_f32_n2c4h9w6_k2from2"},
    {"x[:, 3:1]", "it takes no channels"},
    {"x[:, ::2]", "its step is not 1"},
    {"x[:, k:]", "start is not a constant"},
    {"x[:, 1:k]", "end is not a constant"},
    {"x[:, :, 1:3]", kNoReason},
    {"x[0][:, 1:3]", kNoReason},

    {"torch.channel_shuffle(x, 2)", "shuffle_f32_n2c4h9w6_g2"},
    {"torch.channel_shuffle(x, 1)", kNoReason},
    {"torch.channel_shuffle(x, k)", "groups is not a constant"},
    {"torch.channel_shuffle(x.unsqueeze(0), 2)", "its rank is 5"},

    {"torch.pixel_shuffle(x, 2)", "pixelshuffle_f32_n2c4h9w6_x2"},
    {"torch.pixel_shuffle(x.double(), 2)", "pixelshuffle_f64_n2c4h9w6_x2"},
    {"torch.pixel_shuffle(x, 1)", kNoReason},
    {"torch.pixel_shuffle(x, k)", "upscale_factor is not a constant"},
    {"torch.pixel_shuffle(x[0], 2)", "its rank is 3"},
    {"torch.pixel_shuffle(x.unsqueeze(0), 2)", "its rank is 5"},
    {"torch.pixel_unshuffle(x, 3)", kNoReason},
};

constexpr Reading kNorms[] = {
    {"torch.batch_norm(x, self.v, self.v, self.v, self.u, False, 0.1, 0.01, False)",
     "scaleshift_f32_n2c4h9w6"},
    {"torch.batch_norm(x, None, None, self.v, self.u, False, 0.1, 0.01, False)",
     "scaleshift_f32_n2c4h9w6"},
    {"torch.batch_norm(x[:, :, 0], self.v, None, self.v, self.u, False, 0.1, 0.01, False)",
     "scaleshift_f32_n2c4h1w6"},
    {"torch.batch_norm(x, self.v, self.v, self.v, self.u, True, 0.1, 0.01, False)",
     "it uses the statistics of the batch"},
    {"torch.batch_norm(x, self.v, self.v, None, None, True, 0.1, 0.01, False)",
     "it uses the statistics of the batch"},
    {"torch.batch_norm(x, self.v, self.v, self.v, self.u, on, 0.1, 0.01, False)",
     "training is not a constant"},
    {"torch.batch_norm(x, x[0, :, 0, 0], self.v, self.v, self.u, False, 0.1, 0.01, False)",
     "weight is not a constant"},
    {"torch.batch_norm(x, self.v, x[0, :, 0, 0], self.v, self.u, False, 0.1, 0.01, False)",
     "bias is not a constant"},
    {"torch.batch_norm(x, self.v, self.v, x[0, :, 0, 0], self.u, False, 0.1, 0.01, False)",
     "running_mean is not a constant"},
    {"torch.batch_norm(x, self.v, self.v, self.v, x[0, :, 0, 0], False, 0.1, 0.01, False)",
     "running_var is not a constant"},
    {"torch.batch_norm(x, self.v, self.v, self.v, self.u, False, 0.1, float(k), False)",
     "eps is not a constant"},
    {"torch.batch_norm(x.half(), self.v, self.v, self.v, self.u, False, 0.1, 0.01, False)",
     "weight is Float, its input f16"},
    {"torch.batch_norm(x[:, :, 0, 0], self.v, self.v, self.v, self.u, False, 0.1, 0.01, False)",
     "its rank is 2"},
    {"torch.batch_norm(x.unsqueeze(2), self.v, self.v, self.v, self.u, False, 0.1, 0.01, False)",
     "its rank is 5"},

    {"torch.group_norm(x, 2, self.v, self.u, 0.001)", "groupnorm_f32_n2c4h9w6_g2_eps0.001"},
    {"torch.group_norm(x, 4, self.v, self.u, 1.0)", "groupnorm_f32_n2c4h9w6_g4_eps1"},
    {"torch.group_norm(x[:, :, 0], 2, self.v, self.u)", "groupnorm_f32_n2c4h1w6_g2_eps1e-05"},
    {"torch.group_norm(x, 2, self.v)", "groupnorm_f32_n2c4h9w6_g2_eps1e-05"},
    // Weights fix the number of channels. Without any, other inputs may have another number.
    {"torch.group_norm(x, 2)", "it has no weight"},
    {"torch.group_norm(torch.conv2d(x, self.k1), 2)", "groupnorm_f32_n2c4h9w6_g2_eps1e-05"},
    {"torch.instance_norm(x, self.v, self.u, None, None, True, 0.1, 0.001, False)",
     "groupnorm_f32_n2c4h9w6_g4_eps0.001"},
    {"torch.instance_norm(x, None, None, None, None, True, 0.1, 0.001, False)", kNoReason},
    {"torch.group_norm(x, k, self.v, self.u)", "num_groups is not a constant"},
    {"torch.group_norm(x, 2, x[0, :, 0, 0], self.u)", "weight is not a constant"},
    {"torch.group_norm(x, 2, self.v, x[0, :, 0, 0])", "bias is not a constant"},
    {"torch.group_norm(x, 2, self.v, self.u, 2.0)", "eps is not from 0 to 1"},
    {"torch.group_norm(x, 2, self.v, self.u, float(k))", "eps is not a constant"},
    {"torch.group_norm(x[:, :, 0, 0], 2, self.v, self.u)", "its rank is 2"},
    {"torch.group_norm(x.unsqueeze(2), 2, self.v, self.u)", "its rank is 5"},

    // A layer norm over channels needs a permute before it and one after it.
    {"torch.layer_norm(x.permute([0, 2, 3, 1]), [4], self.v, self.u, 0.01).permute([0, 3, 1, 2])",
     "layernorm_f32_n2c4h9w6_eps0.01"},
    {"torch.layer_norm(x.permute([0, 2, 3, 1]), [4], self.v).permute([0, 3, 1, 2])",
     "layernorm_f32_n2c4h9w6_eps1e-05"},
    {"torch.layer_norm(x.permute([0, 2, 3, 1]), [4]).permute([0, 3, 1, 2])",
     "weight is not a constant"},
    {"torch.layer_norm(x.permute([0, 2, 3, 1]), [4], self.v, y[0, :, 0, 0]).permute([0, 3, 1, 2])",
     "bias is not a constant"},
    {"torch.layer_norm(x.permute([0, 2, 3, 1]), [4], self.v, None, 2.0).permute([0, 3, 1, 2])",
     "eps is not from 0 to 1"},
    {"torch.layer_norm(x.permute([0, 2, 3, 1]), [6, 4]).permute([0, 3, 1, 2])", kNoReason},
    {"torch.layer_norm(x.permute([0, 2, 3, 1]), [4], self.v).permute([0, 3, 2, 1])", kNoReason},
    {"torch.layer_norm(x.permute([0, 3, 2, 1]), [4], self.v).permute([0, 3, 1, 2])", kNoReason},
    {R"(n = torch.layer_norm(x.permute([0, 2, 3, 1]), [4], self.v)
  return n, n.permute([0, 3, 1, 2]))",
     kNoReason},
    {"torch.layer_norm(x, [6])", kNoReason},
    {R"(z = torch.conv2d(x, self.k1)
  return z * torch.rsqrt(z.pow(2).mean(1, True) + 0.001))",
     "rmsnorm_f32_n2c4h9w6_eps0.001"},
};

constexpr Reading kResizes[] = {
    {"torch.upsample_nearest2d(x, [18, 12])", "nearest_f32_n2c4h9w6_p18q12"},
    {"torch.upsample_nearest2d(x, [k, k])", "nearest_f32_n2c4h9w6_p2q2"},
    {"torch.upsample_nearest2d(x, [y.size(2) * 2, y.size(3) * 2])", "nearest_f32_n2c4h9w6_p18q12"},
    {"torch.upsample_nearest2d(x, [18, 12], 2.0, 2.0)", "nearest_f32_n2c4h9w6_x2x2"},
    {"torch.upsample_nearest2d(x, None, [2.0, 3.0])", "nearest_f32_n2c4h9w6_x2x3"},
    {"torch.upsample_nearest2d(x, [18, 12], 2.5, 2.0)",
     "the scale factor 2.5 is not that of its sizes"},
    {"torch.upsample_nearest2d(x, [18, 12], 2.0, 2.1)",
     "the scale factor 2.1 is not that of its sizes"},
    {"torch.upsample_nearest2d(x, None, [0.5, 0.5])",
     "the scale factor 0.5 is not that of its sizes"},
    {"torch.upsample_nearest2d(x, [9, 9], 1.0, 1.5)", "its scale factors are not integers"},
    {"torch.upsample_bilinear2d(x, [18, 12], False, 2.5)", "it has one scale factor of two"},
    {"torch.upsample_bilinear2d(x, [18, 12], False, None, 2.0)", "it has one scale factor of two"},
    {"torch.upsample_nearest2d(x, [18, 12], float(k), 2.0)", "scales_h is not a constant"},
    {"torch.upsample_nearest2d(x, None, [float(k), 2.0])", "scale_factors is not a constant"},
    {"torch.upsample_bilinear2d(x, [18, 12], False)", "bilinear_f32_n2c4h9w6_p18q12"},
    {"torch.upsample_bilinear2d(x, [18, 12], True)", "bilinear_f32_n2c4h9w6_p18q12_align"},
    {"torch.upsample_bilinear2d(x, None, False, [2.0, 3.0])", "bilinear_f32_n2c4h9w6_x2x3"},
    {"torch.upsample_bilinear2d(x, [18, 12], on)", "align_corners is not a constant"},
    {"torch.upsample_bicubic2d(x, [18, 12], False)", kNoReason},
    {"torch._upsample_bilinear2d_aa(x, [18, 12], False)", kNoReason},

    {"torch.__interpolate(x, [18, 12], None, \"nearest\", None, None)",
     "nearest_f32_n2c4h9w6_p18q12"},
    {"torch.__interpolate(x, 7, None, \"nearest\", None, None)", "nearest_f32_n2c4h9w6_p7q7"},
    {"torch.__interpolate(x, k, None, \"nearest\", None, None)", "nearest_f32_n2c4h9w6_p2q2"},
    {"torch.__interpolate(x, None, 2.0, \"nearest\", None, None)", "nearest_f32_n2c4h9w6_x2x2"},
    {"torch.__interpolate(x, None, [2.0, 3.0], \"bilinear\", None, None)",
     "bilinear_f32_n2c4h9w6_x2x3"},
    {"torch.__interpolate(x, None, 2.0, \"bilinear\", True, None)",
     "bilinear_f32_n2c4h9w6_x2x2_align"},
    {"torch.__interpolate(x, [x.size(2) * 2, x.size(3) * 2], None, \"bilinear\", True, None)",
     "bilinear_f32_n2c4h9w6_p18q12_align"},
    {"torch.__interpolate(x, None, 1.5, \"nearest\", None, None)",
     "the scale factor 1.5 is not that of its sizes"},
    {"torch.__interpolate(x, None, [1.0, 1.5], \"bilinear\", None, None)",
     "its scale factors are not integers"},
    {"torch.__interpolate(x, None, 2.4, \"nearest\", None, True)",
     "the scale factor 2.4 is not that of its sizes"},
    {"torch.__interpolate(x, None, float(k), \"nearest\", None, None)",
     "scale_factor is not a constant"},
    {"torch.__interpolate(x, [18, 12], None, mode, None, None)", "mode is not a constant"},
    {"torch.__interpolate(x, [18, 12], None, \"bilinear\", False, None, on)",
     "antialias is not a constant"},
    {"torch.__interpolate(x, [18, 12], None, \"bicubic\", False, None)", kNoReason},
    {"torch.__interpolate(x, [18, 12], None, \"area\", None, None)", kNoReason},
    {"torch.__interpolate(x[0], 12, None, \"nearest\", None, None)", "its rank is 3"},
    {"torch.__interpolate(x.unsqueeze(2), [2, 3, 4], None, \"nearest\", None, None)",
     "its rank is 5"},
};

constexpr Reading kLinears[] = {
    {"torch.linear(x[:, :, 0, 0], self.k1[:, :, 0, 0])", "linear_f32_n2c4_k4"},
    {"torch.linear(x[0, 0, 0, :4], self.k1[:, :, 0, 0])", "its rank is 1"},
    {"torch.linear(x[:, :, 0, 0], y[0, :, 0, :4])", "weight is not a constant"},
    {"torch.linear(x[:, :, 0, 0], self.k1[:, :, 0, 0], y[0, :, 0, 0])", "bias is not a constant"},
    {"torch.addmm(self.v, x[:, :, 0, 0], self.k1[:, :, 0, 0])", "linear_f32_n2c4_k4+bias"},
    {"torch.addmm(self.v, x[:, :, 0, 0], self.k1[:, :, 0, 0], beta=2)", "it is scaled"},
    {"torch.addmm(self.v, x[:, :, 0, 0], self.k1[:, :, 0, 0], alpha=2)", "it is scaled"},
    {"torch.addmm(self.k1[:2, :, 0, 0], x[:, :, 0, 0], self.k1[:, :, 0, 0])",
     "its bias has a batch"},
    {"torch.addmm(self.v[:1], x[:, :, 0, 0], self.k1[:, :, 0, 0])", "its bias has a batch"},
};

template <std::size_t N>
void check_all(const Reading (&readings)[N]) {
  for (const Reading& reading : readings) check(reading);
}

TEST(ReadOp, MaxPools) { check_all(kMaxPools); }
TEST(ReadOp, AveragePools) { check_all(kAveragePools); }
TEST(ReadOp, Activations) { check_all(kActivations); }
TEST(ReadOp, SumsAndProducts) { check_all(kSums); }
TEST(ReadOp, JoinsPartsAndShuffles) { check_all(kChannelOps); }
TEST(ReadOp, Norms) { check_all(kNorms); }
TEST(ReadOp, Resizes) { check_all(kResizes); }
TEST(ReadOp, LinearLayers) { check_all(kLinears); }

OpWeights weights_of_op(const std::string& result) {
  const ImportedGraph imported = import_op(result);
  return weights_of(imported.nodes.back(), *imported.graph.nodes.back().problem);
}

TEST(WeightsOf, FillsInScalesAndShiftsThatANormLacks) {
  EXPECT_TRUE(
      weights_of_op("torch.layer_norm(x.permute([0, 2, 3, 1]), [4], self.v).permute([0, 3, 1, 2])")
          .bias.eq(0)
          .all()
          .item<bool>());
  const OpWeights norm =
      weights_of_op("torch.batch_norm(x, None, None, self.u, self.u, False, 0.1, 0.0, False)");
  // scale = u^-1/2 and shift = -u * scale, so their product is -1.
  EXPECT_TRUE(at::allclose(norm.weights.mul(norm.bias), at::full({4}, -1.0)));
}

}  // namespace
}  // namespace torchalgo
