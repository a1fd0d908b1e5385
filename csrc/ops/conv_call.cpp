// SPDX-License-Identifier: BSD-3-Clause
#include "ops/conv_call.h"

#include <ATen/Context.h>

#include <algorithm>

#include "base/error.h"
#include "ir/arithmetic.h"

namespace torchalgo {
namespace {

bool is_channels_last(at::MemoryFormat format) {
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

std::optional<DType> compute_type(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat: {
      const bool is_tf32 = tensor.is_cuda() && at::globalContext().float32Precision(
                                                   at::Float32Backend::CUDA, at::Float32Op::CONV) ==
                                                   at::Float32Precision::TF32;
      return is_tf32 ? DType::kTf32 : DType::kF32;
    }
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBf16;
    default:
      return std::nullopt;
  }
}

bool is_plain(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.layout() == at::kStrided && tensor.device() == like.device() &&
         tensor.scalar_type() == like.scalar_type() && !tensor.is_neg() && !tensor.is_quantized() &&
         !tensor.is_nested() && !tensor._is_zerotensor();
}

bool are_plain(const ConvCall& call, const at::Tensor& first) {
  if (!first.is_cpu() && !first.is_cuda()) return false;
  for (const at::Tensor* tensor : {&call.src, &call.weights, &call.dst, &call.bias}) {
    if (tensor->defined() && !is_plain(*tensor, first)) return false;
  }
  return true;
}

// Returns sizes (without batch and channels) or parameters as triples. Missing ones in front are
// `filler`.
struct Triple {
  std::int64_t d, h, w;
};
Triple image(at::IntArrayRef sizes) {
  const std::size_t rank = sizes.size();
  return {rank == 5 ? sizes[2] : 1, rank >= 4 ? sizes[rank - 2] : 1, sizes[rank - 1]};
}
Triple parameter(at::IntArrayRef values, std::size_t count, std::int64_t filler) {
  const auto value = [&](std::size_t from_end) {
    if (from_end > count) return filler;
    return values.size() == 1 ? values[0] : values[count - from_end];
  };
  return {value(3), value(2), value(1)};
}
bool all_at_least(const Triple& triple, std::int64_t least) {
  return triple.d >= least && triple.h >= least && triple.w >= least;
}

}  // namespace

std::optional<ConvProblem> conv_problem(const ConvCall& call) {
  const at::Tensor& first = call.direction == Direction::kBackwardData ? call.dst : call.src;
  const auto sizes_of = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.sizes() : at::IntArrayRef(call.result_sizes);
  };
  if (!first.defined() || !are_plain(call, first)) return std::nullopt;
  const auto dtype = compute_type(first);
  const auto src = sizes_of(call.src), weights = sizes_of(call.weights), dst = sizes_of(call.dst);
  const std::size_t rank = src.size();
  if (!dtype || rank < 3 || rank > 5 || weights.size() != rank || dst.size() != rank) {
    return std::nullopt;
  }
  for (const auto values : {call.stride, call.padding, call.dilation}) {
    if (values.size() != 1 && values.size() != rank - 2) return std::nullopt;
  }
  for (const auto sizes : {src, weights, dst}) {
    if (std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 1; })) {
      return std::nullopt;
    }
  }
  const Triple stride = parameter(call.stride, rank - 2, 1);
  const Triple pad = parameter(call.padding, rank - 2, 0);
  const Triple dilation = parameter(call.dilation, rank - 2, 1);
  if (!all_at_least(stride, 1) || !all_at_least(pad, 0) || !all_at_least(dilation, 1) ||
      call.groups < 1 || weights[0] % call.groups != 0 || src[1] != weights[1] * call.groups ||
      dst[1] != weights[0]) {
    return std::nullopt;
  }
  ConvProblem conv;
  conv.direction = call.direction;
  conv.dtype = *dtype;
  conv.is_3d = rank == 5;
  conv.n = src[0], conv.c = src[1], conv.k = weights[0];
  const Triple size = image(src), filter = image(weights);
  conv.d = size.d, conv.h = size.h, conv.w = size.w;
  conv.t = filter.d, conv.r = filter.h, conv.s = filter.w;
  conv.stride_d = stride.d, conv.stride_h = stride.h, conv.stride_w = stride.w;
  conv.pad_d = pad.d, conv.pad_h = pad.h, conv.pad_w = pad.w;
  conv.dilation_d = dilation.d, conv.dilation_h = dilation.h, conv.dilation_w = dilation.w;
  conv.groups = call.groups;
  if (!refuse_sizes(conv).empty()) return std::nullopt;
  const std::vector<std::int64_t> fitting = conv_dst_sizes(conv);
  const Triple result = image(fitting), given = image(dst);
  if (fitting[0] != dst[0] || result.d != given.d || result.h != given.h || result.w != given.w) {
    return std::nullopt;
  }
  if (call.bias.defined()) {
    const std::int64_t channels = call.direction == Direction::kForward ? dst[1] : src[1];
    if (call.bias.dim() != 1 || call.bias.size(0) != channels) return std::nullopt;
    conv.epilogue = {PostOp::kBias};
  }
  return conv;
}

void check_bias_type(const at::Tensor& input, const std::optional<at::Tensor>& bias,
                     bool transposed) {
  TORCHALGO_CHECK(
      transposed || !bias || !bias->defined() || bias->scalar_type() == input.scalar_type(),
      "TA4304 torchalgo: the input is {} and the bias {}, expected one dtype: convert one of them",
      c10::toString(input.scalar_type()), c10::toString(bias->scalar_type()));
}

at::MemoryFormat conv_memory_format(const at::Tensor& input, const at::Tensor& weight) {
  const std::int64_t rank = input.dim();
  if (rank != 4 && rank != 5) return at::MemoryFormat::Contiguous;
  for (const at::Tensor* tensor : {&input, &weight}) {
    const at::MemoryFormat format = tensor->suggest_memory_format();
    if (is_channels_last(format)) return format;
  }
  return at::MemoryFormat::Contiguous;
}

Layout strided_layout(const at::Tensor& tensor) {
  return is_channels_last(tensor.suggest_memory_format()) ? Layout::kNhwc : Layout::kNchw;
}

}  // namespace torchalgo
