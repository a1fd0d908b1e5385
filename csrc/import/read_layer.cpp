// SPDX-License-Identifier: BSD-3-Clause
#include "import/read_layer.h"

#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "torchscript/constants.h"
#include "torchscript/zero_padding.h"

namespace torchalgo {

using script::Node;
using script::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

// Returns three spatial dimensions. Missing ones in front become `fill`.
Sizes as_three(const Sizes& spatial, std::int64_t fill) {
  Sizes three(3, fill);
  std::copy(spatial.begin(), spatial.end(), three.end() - static_cast<long>(spatial.size()));
  return three;
}

Sizes spatial_of(const Sizes& sizes) { return {sizes.begin() + 2, sizes.end()}; }

// Returns the zeros around the image. The padding "same" keeps the image's size; if the total is
// odd, there is one zero more after the image.
ZeroPadding conv_padding(const Operands& op, const Sizes& filter, const Sizes& dilation) {
  const auto mode = op.value("padding").constant();
  if (!mode || !mode->isString()) {
    const Sizes pads = op.ints("padding", filter.size());
    return {pads, pads};
  }
  ZeroPadding zeros{Sizes(filter.size(), 0), Sizes(filter.size(), 0)};
  if (mode->toStringRef() == "valid") return zeros;
  for (std::size_t i = 0; i < filter.size(); ++i) {
    const std::int64_t total = dilation[i] * (filter[i] - 1);
    zeros.before[i] = total / 2;
    zeros.after[i] = total - total / 2;
  }
  return zeros;
}

// Returns the zeros that the node before a convolution puts around its image, if nothing else reads
// that node's result and a problem can have them.
std::optional<ZeroPadding> own_zeros(const Operands& op, Value image) {
  if (!has_one_reader(image)) return std::nullopt;
  const auto zeros = zero_padding(image.node());
  if (!zeros || !op.is_plannable(image.node().input(0))) return std::nullopt;
  const std::size_t rank = op.tensor(image.node().input(0)).sizes.size();
  const bool has_rows = zeros->before[0] + zeros->after[0] > 0;
  const bool fits = rank == 4 || (rank == 3 && !has_rows) ||  // a 1-D image has columns only
                    (rank == 5 && zeros->before == zeros->after);
  return fits ? zeros : std::nullopt;
}

bool is_transposed(const Operands& op) {
  if (op.has("transposed")) return op.boolean("transposed");
  return op.node().name().starts_with("conv_transpose");
}

// Sets everything but the sizes of the image. `zeros` are those of a node before the convolution.
void set_window(ConvProblem& conv, const Operands& op, const at::Tensor& weights,
                const std::optional<ZeroPadding>& zeros) {
  const Sizes filter = spatial_of(weights.sizes().vec());
  const Sizes dilation = op.ints("dilation", filter.size());
  const Sizes rs = as_three(filter, 1);
  const Sizes stride = as_three(op.ints("stride", filter.size()), 1);
  const ZeroPadding own = conv_padding(op, filter, dilation);
  Sizes pad = as_three(own.before, 0), after = as_three(own.after, 0);
  if (zeros) {
    for (const std::size_t i : {0, 1}) {
      pad[1 + i] += zeros->before[i];
      after[1 + i] += zeros->after[i];
    }
  }
  const Sizes dilations = as_three(dilation, 1);
  conv.t = rs[0], conv.r = rs[1], conv.s = rs[2];
  conv.stride_d = stride[0], conv.stride_h = stride[1], conv.stride_w = stride[2];
  conv.pad_d = pad[0], conv.pad_h = pad[1], conv.pad_w = pad[2];
  conv.dilation_d = dilations[0], conv.dilation_h = dilations[1], conv.dilation_w = dilations[2];
  conv.extra_h = after[1] - pad[1], conv.extra_w = after[2] - pad[2];
  conv.is_3d = filter.size() == 3;
  if (conv.is_3d && (after[0] != pad[0] || !is_padded_evenly(conv))) {
    throw NotPlanned("its padding is uneven in 3-D");
  }
}

// Returns the node that makes the first input of `node`, if it has this kind and no other reader.
// Otherwise returns null.
Node own_source(Node node, std::string_view kind) {
  const Value src = node.input(0);
  return has_one_reader(src) && src.node().is(kind) ? src.node() : nullptr;
}

LinearProblem linear_of(const TensorInfo& src, std::int64_t k) {
  if (src.sizes.size() != 2) throw NotPlanned(fmt::format("its rank is {}", src.sizes.size()));
  LinearProblem linear;
  linear.dtype = *src.dtype;
  linear.n = src.sizes[0], linear.c = src.sizes[1], linear.k = k;
  return linear;
}

OpWeights scale_and_shift(const Operands& op, DType dtype) {
  const auto as_double = [&](const char* name) { return op.constant(name, dtype).to(at::kDouble); };
  at::Tensor scale = as_double("running_var").add(op.number("eps")).rsqrt();
  if (!op.is_none("weight")) scale = scale.mul(as_double("weight"));
  at::Tensor shift = as_double("running_mean").mul(scale).neg();
  if (!op.is_none("bias")) shift = shift.add(as_double("bias"));
  const auto type = op.constant("running_mean", dtype).scalar_type();
  return {scale.to(type), shift.to(type)};
}

OpWeights norm_weights(const Operands& op, DType dtype) {
  const at::Tensor scale = op.constant("weight", dtype).contiguous();
  if (op.is_none("bias")) return {scale, at::zeros_like(scale)};
  return {scale, op.constant("bias", dtype).contiguous()};
}

double epsilon_of(const Operands& norm) {
  const double epsilon = norm.number("eps");
  if (!(epsilon >= 0 && epsilon <= 1)) throw NotPlanned("eps is not from 0 to 1");
  return epsilon;
}

}  // namespace

OpReading read_conv(const Operands& op) {
  const bool transposed = is_transposed(op);
  Value input = data_input(op);
  std::vector<Node> inner;
  const auto zeros = transposed ? std::nullopt : own_zeros(op, input);
  if (zeros) {
    inner = {input.node()};
    input = inner[0].input(0);
  }
  const TensorInfo& src = op.tensor(input);
  const at::Tensor weights = op.constant("weight", *src.dtype);
  if (static_cast<std::int64_t>(src.sizes.size()) != weights.dim()) {
    throw NotPlanned("its input has no batch dimension");
  }
  ConvProblem conv;
  conv.dtype = *src.dtype;
  conv.groups = op.ints("groups")[0];
  set_window(conv, op, weights, zeros);
  // A transposed convolution is the gradient of a forward convolution that reads the result's
  // shape.
  const Sizes& image = transposed ? op.result().sizes : src.sizes;
  // A padding that is no constant follows from the input's size, as output_size does.
  if (transposed) static_cast<void>(op.ints("output_padding"));
  const Sizes dhw = as_three(spatial_of(image), 1);
  conv.direction = transposed ? Direction::kBackwardData : Direction::kForward;
  conv.n = image[0], conv.c = image[1];
  conv.d = dhw[0], conv.h = dhw[1], conv.w = dhw[2];
  conv.k = weights.size(0);
  if (!op.is_none("bias")) {
    static_cast<void>(op.constant("bias", *src.dtype));
    conv.epilogue = {PostOp::kBias};
  }
  OpReading reading = planned(conv, {input});
  reading.inner = std::move(inner);
  return reading;
}

OpReading read_linear(const Operands& op) {
  Value input = data_input(op);
  const TensorInfo& src = op.tensor(input);
  LinearProblem linear = linear_of(src, op.constant("weight", *src.dtype).size(0));
  if (!op.is_none("bias")) {
    static_cast<void>(op.constant("bias", *src.dtype));
    linear.epilogue = {PostOp::kBias};
  }
  return planned(linear, {input});
}

OpReading read_addmm(const Operands& op) {
  Value input = op.value("mat1");
  const TensorInfo& src = op.tensor(input);
  const at::Tensor weights = op.constant("mat2", *src.dtype);
  const at::Tensor bias = op.constant("self", *src.dtype);
  if (op.number("beta") != 1.0 || op.number("alpha") != 1.0) throw NotPlanned("it is scaled");
  if (bias.dim() != 1 || bias.size(0) != weights.size(1)) throw NotPlanned("its bias has a batch");
  LinearProblem linear = linear_of(src, weights.size(1));
  linear.epilogue = {PostOp::kBias};
  return planned(linear, {input});
}

OpReading read_batch_norm(const Operands& op) {
  Value input = data_input(op);
  const TensorInfo& src = rank4_or_3(op, input);
  if (op.boolean("training")) throw NotPlanned("it uses the statistics of the batch");
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    const bool is_optional = name[0] != 'r';
    if (!is_optional || !op.is_none(name)) static_cast<void>(op.constant(name, *src.dtype));
  }
  static_cast<void>(op.number("eps"));
  return planned(with_src<ScaleShiftProblem>(src), {input});
}

// PyTorch normalizes over last dimensions only, so models move the channels there and back. The
// last of the three nodes represents all of them.
OpReading read_layer_norm(const Operands& op) {
  const Node norm = own_source(op.node(), "aten::layer_norm");
  if (norm == nullptr || !is_permute(op.node(), {0, 3, 1, 2})) return {};
  const Node first = own_source(norm, "aten::permute");
  if (first == nullptr || !is_permute(first, {0, 2, 3, 1})) return {};
  const Operands args = op.of(norm);
  Value input = first.input(0);
  auto problem = with_src<LayerNormProblem>(rank4(op, input));
  if (args.ints("normalized_shape") != Sizes{problem.c}) return {};
  static_cast<void>(args.constant("weight", problem.dtype));
  if (!args.is_none("bias")) static_cast<void>(args.constant("bias", problem.dtype));
  problem.epsilon = epsilon_of(args);
  OpReading reading = planned(problem, {input});
  reading.inner = {first, norm};
  return reading;
}

OpReading read_channel_norm(const Operands& op) {
  Value input = op.value("src");
  auto problem = with_src<LayerNormProblem>(rank4_or_3(op, input));
  const auto kind = op.value("kind").constant();
  if (!kind || op.number("dim") != 1.0) return {};
  problem.kind = parse_layer_norm_kind(kind->toStringRef()).value();
  problem.epsilon = epsilon_of(op);
  return planned(problem, {input});
}

OpReading read_group_norm(const Operands& op) {
  Value input = data_input(op);
  auto problem = with_src<GroupNormProblem>(rank4_or_3(op, input));
  problem.groups = op.ints("num_groups").at(0);
  for (const char* name : {"weight", "bias"}) {
    if (op.is_none(name)) throw NotPlanned(fmt::format("it has no {}", name));
    static_cast<void>(op.constant(name, problem.dtype));
  }
  problem.epsilon = epsilon_of(op);
  return planned(problem, {input});
}

OpWeights weights_of(Node node, const Problem& problem) {
  const TensorInfos no_infos;
  const Operands op(node, no_infos);
  const DType dtype = dtype_of(problem);
  if (std::holds_alternative<ScaleShiftProblem>(problem)) return scale_and_shift(op, dtype);
  if (std::holds_alternative<GroupNormProblem>(problem)) return norm_weights(op, dtype);
  if (std::holds_alternative<LayerNormProblem>(problem)) {
    if (op.has("shift")) return {op.constant("scale", dtype), op.constant("shift", dtype)};
    return norm_weights(op.of(node.input(0).node()), dtype);
  }
  const bool is_conv = std::holds_alternative<ConvProblem>(problem);
  if (!is_conv && !std::holds_alternative<LinearProblem>(problem)) return {};
  OpWeights found;
  if (op.has("mat2")) {
    return {op.constant("mat2", dtype).t().contiguous(), op.constant("self", dtype).contiguous()};
  }
  found.weights = op.constant("weight", dtype);
  if (is_conv && found.weights.dim() == 3) found.weights = found.weights.unsqueeze(2);
  found.weights = found.weights.contiguous();
  if (!op.is_none("bias")) found.bias = op.constant("bias", dtype).contiguous();
  return found;
}

}  // namespace torchalgo
