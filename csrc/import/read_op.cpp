// SPDX-License-Identifier: BSD-3-Clause
#include "import/read_op.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "import/computed_size.h"
#include "import/read_layer.h"
#include "torchscript/constants.h"
#include "torchscript/graph_sizes.h"

namespace torchalgo {

using script::Node;
using script::Value;

namespace {

using Sizes = std::vector<std::int64_t>;

PoolProblem read_window(const Operands& op, Value input, PoolKind kind) {
  auto pool = with_src<PoolProblem>(rank4(op, input));
  const Sizes window = op.ints("kernel_size", 2);
  const Sizes stride = op.ints("stride").empty() ? window : op.ints("stride", 2);
  const Sizes pad = op.ints("padding", 2);
  pool.kind = kind;
  pool.r = window[0], pool.s = window[1];
  pool.stride_h = stride[0], pool.stride_w = stride[1];
  pool.pad_h = pad[0], pool.pad_w = pad[1];
  pool.ceil_mode = op.boolean("ceil_mode");
  return pool;
}

OpReading read_max_pool(const Operands& op) {
  Value input = data_input(op);
  PoolProblem pool = read_window(op, input, PoolKind::kMax);
  const Sizes dilation = op.ints("dilation", 2);
  pool.dilation_h = dilation[0], pool.dilation_w = dilation[1];
  return planned(pool, {input});
}

// A window of the size of the image is a global pooling.
OpReading read_global_pool(const Operands& op, Value input) {
  if (op.ints("padding", 2) != Sizes{0, 0}) throw NotPlanned("kernel_size is not a constant");
  auto pool = with_src<PoolProblem>(rank4(op, input));
  pool.kind = PoolKind::kAdaptiveAverage;
  return planned(pool, {input});
}

OpReading read_average_pool(const Operands& op) {
  Value input = data_input(op);
  if (!op.is_none("divisor_override")) throw NotPlanned("it has a divisor_override");
  if (is_image_size_of(op.value("kernel_size"), input)) return read_global_pool(op, input);
  PoolProblem pool = read_window(op, input, PoolKind::kAverage);
  pool.count_include_pad = op.boolean("count_include_pad");
  return planned(pool, {input});
}

OpReading read_adaptive_pool(const Operands& op) {
  Value input = data_input(op);
  auto pool = with_src<PoolProblem>(rank4(op, input));
  pool.kind = PoolKind::kAdaptiveAverage;
  if (computed_size(op.node()) != nullptr) {
    pool.p = op.result().sizes.at(2), pool.q = op.result().sizes.at(3);
    // A call may include a convolution behind a pooling to 1x1. Such a call takes no size.
    if (is_chain_head(pool)) throw NotPlanned("output_size is not a constant");
    return planned(pool, {input});
  }
  const Sizes size = op.ints("output_size", 2);
  pool.p = size[0], pool.q = size[1];
  return planned(pool, {input});
}

// Reads mean over h and w with keepdim as a pooling to 1 x 1.
OpReading read_mean(const Operands& op) {
  if (!op.has("dim") || !op.has("keepdim")) return {};
  Value input = data_input(op);
  auto pool = with_src<PoolProblem>(rank4(op, input));
  Sizes dims = op.ints("dim");
  for (std::int64_t& dim : dims) dim = dim < 0 ? dim + 4 : dim;
  std::sort(dims.begin(), dims.end());
  if (dims != Sizes{2, 3} || !op.boolean("keepdim")) return {};
  if (!op.is_none("dtype")) throw NotPlanned("it changes the dtype");
  pool.kind = PoolKind::kAdaptiveAverage;
  return planned(pool, {input});
}

EltwiseProblem eltwise_of(const Operands& op, Value src, EltwiseKind kind) {
  auto eltwise = with_src<EltwiseProblem>(rank4_or_3(op, src));
  eltwise.kind = kind;
  return eltwise;
}

OpReading activation(const Operands& op, const PostOp& post_op) {
  Value input = data_input(op);
  EltwiseProblem eltwise = eltwise_of(op, input, EltwiseKind::kActivation);
  eltwise.epilogue = {post_op};
  return planned(eltwise, {input});
}

OpReading clamp(const Operands& op, const char* low_name, const char* high_name) {
  if (op.is_none(low_name)) return {};
  const double low = op.number(low_name) + 0.0;  // not -0, which would have a text of its own
  if (op.is_none(high_name)) return low == 0 ? activation(op, PostOp::kRelu) : OpReading{};
  const double high = op.number(high_name) + 0.0;
  if (low == 0 && high == 6) return activation(op, PostOp::kRelu6);
  // Pad lanes must stay zero, so 0 must lie between the bounds.
  if (!(low >= -kLargestNumber && low <= 0 && high >= 0 && high <= kLargestNumber)) return {};
  return activation(op, {PostOp::kClamp, {low, high}});
}

OpReading read_clamp_min(const Operands& op) {
  return op.number("min") == 0.0 ? activation(op, PostOp::kRelu) : OpReading{};
}

OpReading activation_with(const Operands& op, PostOp::Kind kind, const char* name) {
  const double number = op.number(name) + 0.0;
  if (!(std::abs(number) <= kLargestNumber)) {
    throw NotPlanned(fmt::format("{} is larger than {}", name, kLargestNumber));
  }
  return activation(op, {kind, {number}});
}

OpReading read_leaky_relu(const Operands& op) {
  return activation_with(op, PostOp::kLeakyRelu, "negative_slope");
}

OpReading read_elu(const Operands& op) {
  if (op.number("scale") != 1.0 || op.number("input_scale") != 1.0) {
    throw NotPlanned("its scales are not 1");
  }
  return activation_with(op, PostOp::kElu, "alpha");
}

bool are_alike(const TensorInfo& a, const TensorInfo& b) {
  return a.dtype == b.dtype && a.sizes == b.sizes;
}

// A sum or a difference.
OpReading read_sum(const Operands& op, EltwiseKind kind) {
  Value a = op.value("self");
  Value b = op.value("other");
  if (!is_tensor(b)) return {};
  if (!are_alike(op.tensor(a), op.tensor(b))) throw NotPlanned("its operands differ in shape");
  if (op.number("alpha") != 1.0) throw NotPlanned("alpha is not 1");
  return planned(eltwise_of(op, a, kind), {a, b});
}

OpReading read_add(const Operands& op) { return read_sum(op, EltwiseKind::kAdd); }
OpReading read_sub(const Operands& op) { return read_sum(op, EltwiseKind::kSub); }

OpReading read_mul(const Operands& op) {
  Value a = op.value("self");
  Value b = op.value("other");
  if (!is_tensor(b)) return {};
  if (are_alike(op.tensor(a), op.tensor(b))) {
    return planned(eltwise_of(op, a, EltwiseKind::kMul), {a, b});
  }
  const auto is_channel_vector = [&](Value vector, Value whole) {
    const TensorInfo& v = op.tensor(vector);
    const TensorInfo& w = op.tensor(whole);
    return v.dtype == w.dtype && w.sizes.size() == 4 &&
           v.sizes == Sizes{w.sizes[0], w.sizes[1], 1, 1};
  };
  if (is_channel_vector(a, b)) std::swap(a, b);
  if (!is_channel_vector(b, a)) throw NotPlanned("its operands differ in shape");
  EltwiseProblem mul = eltwise_of(op, a, EltwiseKind::kMul);
  mul.channelwise = true;
  return planned(mul, {a, b});
}

// Returns true if the op works along the channels of tensors of rank 4.
bool is_along_channels(const Operands& op) {
  const double dim = op.number("dim");
  return dim == 1.0 || dim == -3.0;
}

OpReading read_cat(const Operands& op) {
  if (!is_fixed_list(op.value("tensors"))) throw NotPlanned("its list is not fixed");
  Node list = op.value("tensors").node();
  const std::vector<Value> inputs = list.inputs();
  if (inputs.empty()) return {};
  ConcatProblem concat;
  const TensorInfo& first = rank4(op, inputs[0]);
  if (!is_along_channels(op)) throw NotPlanned("it does not join channels");
  concat.dtype = *first.dtype;
  concat.n = first.sizes[0], concat.h = first.sizes[2], concat.w = first.sizes[3];
  for (Value input : inputs) {
    const TensorInfo& part = rank4(op, input);
    if (part.dtype != first.dtype) throw NotPlanned("its operands differ in dtype");
    concat.c.push_back(part.sizes[1]);
  }
  return planned(concat, inputs);
}

bool takes_channels(const Operands& op, Value input) {
  return op.tensor(input).sizes.size() == 4 && is_along_channels(op);
}

OpReading slice_of(const Operands& op, Value input, std::int64_t begin, std::int64_t count) {
  auto slice = with_src<SliceProblem>(op.tensor(input));
  slice.begin = begin;
  slice.k = count;
  if (count < 1) throw NotPlanned("it takes no channels");
  return planned(slice, {input});
}

OpReading read_narrow(const Operands& op) {
  Value input = data_input(op);
  if (!takes_channels(op, input)) return {};
  const std::int64_t begin = op.ints("start").at(0);
  const std::int64_t channels = op.tensor(input).sizes[1];
  return slice_of(op, input, begin < 0 ? begin + channels : begin, op.ints("length").at(0));
}

OpReading read_slice(const Operands& op) {
  Value input = data_input(op);
  if (!takes_channels(op, input)) return {};
  if (op.number("step") != 1.0) throw NotPlanned("its step is not 1");
  const std::int64_t channels = op.tensor(input).sizes[1];
  const auto bound = [&](const char* name, std::int64_t otherwise) {
    if (op.is_none(name)) return otherwise;
    const std::int64_t at = op.ints(name).at(0);
    return std::clamp<std::int64_t>(at < 0 ? at + channels : at, 0, channels);
  };
  const std::int64_t begin = bound("start", 0);
  return slice_of(op, input, begin, bound("end", channels) - begin);
}

OpReading read_shuffle(const Operands& op) {
  Value input = data_input(op);
  auto shuffle = with_src<ShuffleProblem>(rank4(op, input));
  shuffle.groups = op.ints("groups").at(0);
  if (shuffle.groups < 2) return {};
  return planned(shuffle, {input});
}

OpReading read_pixel_shuffle(const Operands& op) {
  Value input = data_input(op);
  auto shuffle = with_src<PixelShuffleProblem>(rank4(op, input));
  shuffle.factor = op.ints("upscale_factor").at(0);
  if (shuffle.factor < 2) return {};  // PyTorch's op copies its input
  return planned(shuffle, {input});
}

// A factor that is not the quotient of the sizes changes the positions of the samples, so it is not
// planned.
std::int64_t integral_scale(double scale, std::int64_t from, std::int64_t to) {
  if (static_cast<double>(from) * scale != static_cast<double>(to)) {
    throw NotPlanned(fmt::format("the scale factor {} is not that of its sizes", scale));
  }
  return scale == static_cast<double>(static_cast<std::int64_t>(scale))
             ? static_cast<std::int64_t>(scale)
             : 0;
}

std::vector<double> scale_factors(const Operands& op) {
  for (const char* name : {"scale_factors", "scale_factor"}) {
    if (op.has(name) && !op.is_none(name)) {
      std::vector<double> factors = op.floats(name);
      if (factors.size() == 1) factors.resize(2, factors[0]);
      return factors;
    }
  }
  if (!op.has("scales_h")) return {};
  const bool has_factors = !op.is_none("scales_h");
  if (has_factors == op.is_none("scales_w")) throw NotPlanned("it has one scale factor of two");
  if (!has_factors) return {};
  return {op.number("scales_h"), op.number("scales_w")};
}

// For inputs of other sizes, sizes given as numbers stay the same, and sizes given as factors
// follow the input. A size that the graph computes is passed to the planned op in each call.
OpReading read_resize(const Operands& op, ResizeKind kind) {
  Value input = data_input(op);
  auto resize = with_src<ResizeProblem>(rank4(op, input));
  resize.kind = kind;
  resize.p = op.result().sizes.at(2), resize.q = op.result().sizes.at(3);
  if (kind == ResizeKind::kBilinear && !op.is_none("align_corners")) {
    resize.align_corners = op.boolean("align_corners");
  }
  const std::vector<double> factors = scale_factors(op);
  if (factors.size() != 2) {
    const bool is_computed = computed_size(op.node()) != nullptr;
    if (!is_computed) static_cast<void>(op.ints(op.has("output_size") ? "output_size" : "size"));
    return planned(resize, {input});
  }
  resize.scale_h = integral_scale(factors[0], resize.h, resize.p);
  resize.scale_w = integral_scale(factors[1], resize.w, resize.q);
  if (resize.scale_h == 0 || resize.scale_w == 0) {
    throw NotPlanned("its scale factors are not integers");
  }
  return planned(resize, {input});
}

OpReading read_interpolate(const Operands& op) {
  const auto mode = op.value("mode").constant();
  if (!mode || !mode->isString()) throw NotPlanned("mode is not a constant");
  if (op.has("antialias") && op.boolean("antialias")) throw NotPlanned("it is antialiased");
  if (mode->toStringRef() == "nearest") return read_resize(op, ResizeKind::kNearest);
  if (mode->toStringRef() == "bilinear") return read_resize(op, ResizeKind::kBilinear);
  return {};
}

// Reads attention in f32. In other types PyTorch's ops compute it, so there is nothing to choose.
// No note says so: the op is one of ours.
OpReading read_attention(const Operands& op, AttentionProblem attention) {
  std::vector<Value> inputs = {op.value("query"), op.value("key"), op.value("value")};
  for (Value input : inputs) {
    if (!op.is_plannable(input) || op.tensor(input).dtype != DType::kF32) return {};
  }
  const Sizes query = op.tensor(inputs[0]).sizes, value = op.tensor(inputs[2]).sizes;
  const std::size_t rank = query.size();
  if ((rank != 3 && rank != 4) || value.size() != rank) return {};
  attention.n = query[0];
  attention.heads = rank == 4 ? query[1] : 0;
  attention.queries = query[rank - 2], attention.depth = query[rank - 1];
  attention.keys = value[rank - 2], attention.width = value[rank - 1];
  return planned(attention, std::move(inputs));
}

OpReading read_softmax_attention(const Operands& op) {
  AttentionProblem attention;
  if (!op.is_none("scale")) attention.scale = op.number("scale") + 0.0;  // not -0, as in clamp()
  if (attention.scale && !(std::abs(*attention.scale) <= kLargestNumber)) return {};
  OpReading reading = read_attention(op, attention);
  if (!reading.problem || op.is_none("bias")) return reading;
  // A constant is no data flow, so only its sizes count.
  const Value bias = op.value("bias");
  const auto constant = constant_tensor(bias);
  if (!constant && !op.is_plannable(bias)) return {};
  auto& problem = std::get<AttentionProblem>(*reading.problem);
  problem.bias = constant ? constant->sizes().vec() : op.tensor(bias).sizes;
  if (problem.bias.empty() || !can_broadcast_bias(problem)) return {};
  if (!constant) reading.inputs.push_back(bias);
  return reading;
}

OpReading read_linear_attention(const Operands& op) {
  AttentionProblem attention;
  attention.kind = AttentionKind::kLinear;
  attention.epsilon = op.number("epsilon");
  // With 0, a query without positive features divides 0 by 0.
  if (!(attention.epsilon > 0 && attention.epsilon <= 1)) return {};
  return read_attention(op, attention);
}

using ReadFunction = std::function<OpReading(const Operands&)>;

const std::unordered_map<std::string, ReadFunction>& read_functions() {
  static const std::unordered_map<std::string, ReadFunction> kFunctions = {
      {"aten::conv1d", read_conv},
      {"aten::conv2d", read_conv},
      {"aten::conv3d", read_conv},
      {"aten::_convolution", read_conv},
      {"aten::convolution", read_conv},
      {"aten::_convolution_mode", read_conv},
      {"aten::conv_transpose1d", read_conv},
      {"aten::conv_transpose2d", read_conv},
      {"aten::conv_transpose3d", read_conv},
      {"aten::max_pool2d", read_max_pool},
      {"aten::avg_pool2d", read_average_pool},
      {"aten::adaptive_avg_pool2d", read_adaptive_pool},
      {"aten::mean", read_mean},
      {"aten::hardtanh", [](const Operands& op) { return clamp(op, "min_val", "max_val"); }},
      {"aten::clamp", [](const Operands& op) { return clamp(op, "min", "max"); }},
      {"aten::clamp_min", read_clamp_min},
      {"aten::leaky_relu", read_leaky_relu},
      {"aten::elu", read_elu},
      {"aten::add", read_add},
      {"aten::sub", read_sub},
      {"aten::mul", read_mul},
      {"aten::batch_norm", read_batch_norm},
      {"aten::permute", read_layer_norm},
      {"torchalgo::channel_norm", read_channel_norm},
      {"torchalgo::attention", read_softmax_attention},
      {"torchalgo::linear_attention", read_linear_attention},
      {"aten::group_norm", read_group_norm},
      {"aten::cat", read_cat},
      {"aten::narrow", read_narrow},
      {"aten::slice", read_slice},
      {"aten::channel_shuffle", read_shuffle},
      {"aten::pixel_shuffle", read_pixel_shuffle},
      {"aten::upsample_nearest2d",
       [](const Operands& op) { return read_resize(op, ResizeKind::kNearest); }},
      {"aten::upsample_bilinear2d",
       [](const Operands& op) { return read_resize(op, ResizeKind::kBilinear); }},
      {"aten::__interpolate", read_interpolate},
      {"aten::linear", read_linear},
      {"aten::addmm", read_addmm},
  };
  return kFunctions;
}

// Returns the activation without numbers that has the name of the op of ATen, or nullopt. A variant
// of an op, such as gelu's "tanh", is named in its argument `approximate`.
std::optional<PostOp> find_activation(Node node) {
  if (!is_aten(node)) return std::nullopt;
  std::string wanted(node.name());
  if (node.has_argument("approximate")) {
    const auto variant = node.argument("approximate").constant();
    if (!variant || !variant->isString()) return std::nullopt;
    if (variant->toStringRef() != "none") wanted += "_" + variant->toStringRef();
  }
  for (const auto& [kind, name] : kPostOps) {
    if (is_activation(kind) && number_count(kind) == 0 && name == wanted) return kind;
  }
  return std::nullopt;
}

// Returns the function that reads the op, or null if there is none.
ReadFunction find_read_function(Node node) {
  if (const auto found = read_functions().find(std::string(node.kind()));
      found != read_functions().end()) {
    return found->second;
  }
  const std::optional<PostOp> post_op = find_activation(node);
  if (!post_op) return nullptr;
  return [post_op](const Operands& op) { return activation(op, *post_op); };
}

// Returns the sizes seen in the run, in the rank of the problem ([n, c, w] has h = 1).
bool agrees(const Sizes& seen, Sizes expected) {
  if (expected.size() == 4 && seen.size() == 3 && expected[2] == 1) {
    expected.erase(expected.begin() + 2);
  }
  return seen == expected;
}

// A problem that does not describe the op must not be planned, whatever the cause.
void check_sizes(const Operands& op, const OpReading& reading) {
  const auto inputs = input_sizes(*reading.problem);
  const std::size_t constants = inputs.size() - reading.inputs.size();  // the bias of an attention
  TORCHALGO_ASSERT(constants == 0 || (constants == 1 && inputs.size() == 4));
  for (std::size_t i = 0; i < reading.inputs.size(); ++i) {
    const Sizes& seen = op.tensor(reading.inputs[i]).sizes;
    if (!agrees(seen, inputs[i])) {
      throw NotPlanned(fmt::format("no {} reads sizes [{}]", to_string(*reading.problem),
                                   fmt::join(seen, ", ")));
    }
  }
  if (!agrees(op.result().sizes, result_sizes(*reading.problem))) {
    throw NotPlanned(fmt::format("no {} makes sizes [{}]", to_string(*reading.problem),
                                 fmt::join(op.result().sizes, ", ")));
  }
}

}  // namespace

OpReading read_op(Node node, const TensorInfos& infos) {
  if (node.schema() == nullptr) return {};
  const ReadFunction read = find_read_function(node);
  if (read == nullptr) return {};
  if (node.output_count() != 1 || !is_tensor(node.output())) return {};
  const Operands op(node, infos);
  try {
    OpReading reading = read(op);
    if (reading.problem) check_sizes(op, reading);
    return reading;
  } catch (const NotPlanned& reason) {
    return {std::nullopt, {}, reason.what()};
  }
}

}  // namespace torchalgo
