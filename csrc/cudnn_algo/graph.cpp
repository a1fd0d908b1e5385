// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/graph.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "provider/tensor_shape.h"

namespace torchalgo::cudnn {
namespace {

using Sizes = std::vector<std::int64_t>;

class GraphBuilder {
 public:
  GraphBuilder(const Api& api, const ConvProblem& conv, const Layouts& layouts,
               std::int64_t alignment)
      : api_(api), conv_(conv), layouts_(layouts), alignment_(alignment), shape_(shape_of(conv)) {}

  OperationGraph build(Pattern pattern, Handle handle) {
    const PatternInfo& wanted = info(pattern);
    const bool is_fused = wanted.bias || wanted.add || wanted.activation;
    const std::size_t src = tensor(kSrcUid, data_type(conv_.dtype), shape_.src, layouts_.src);
    const std::size_t weights =
        tensor(kWeightsUid, data_type(conv_.dtype), shape_.weights, layouts_.weights);
    std::size_t dst = is_fused ? intermediate() : result();
    add_convolution(src, weights, dst);
    // The residual comes first, as in cuDNN's precompiled convolution-bias-activation.
    if (wanted.add) {
      const std::size_t residual =
          tensor(kResidualUid, data_type(conv_.dtype), shape_.dst, layouts_.dst);
      dst = add_pointwise(PointwiseMode::kAdd, dst, residual, false);
    }
    if (wanted.bias) {
      Sizes sizes(shape_.dst.size(), 1);
      sizes[1] = conv_.k;
      const std::size_t bias = tensor(kBiasUid, data_type(conv_.dtype), sizes, layouts_.dst);
      dst = add_pointwise(PointwiseMode::kAdd, dst, bias, !wanted.activation);
    }
    if (wanted.activation) add_pointwise(mode_of(*wanted.activation), dst, std::nullopt, true);
    return finish(pattern, handle);
  }

 private:
  std::size_t keep(OwnedDescriptor part) {
    parts_.push_back(std::move(part));
    return parts_.size() - 1;
  }

  std::size_t tensor(std::int64_t uid, DataType type, const Sizes& sizes, Layout layout,
                     bool is_virtual = false) {
    OwnedDescriptor tensor(api_, DescriptorType::kTensor);
    tensor.set(AttributeName::kTensorDataType, type);
    tensor.set(AttributeName::kTensorDimensions, sizes);
    const at::DimVector strides = dense_strides(sizes, layout);
    tensor.set(AttributeName::kTensorStrides, std::span<const std::int64_t>(strides));
    tensor.set(AttributeName::kTensorUniqueId, uid);
    tensor.set(AttributeName::kTensorByteAlignment, alignment_);
    if (is_virtual) tensor.set(AttributeName::kTensorIsVirtual, true);
    tensor.finalize(fmt::format("the tensor '{}'", static_cast<char>(uid)));
    return keep(std::move(tensor));
  }

  // cuDNN's swish with beta 1, its default, is torch's SiLU.
  static PointwiseMode mode_of(PostOp::Kind activation) {
    switch (activation) {
      case PostOp::kSilu:
        return PointwiseMode::kSwishForward;
      case PostOp::kGelu:
        return PointwiseMode::kGeluForward;
      default:
        TORCHALGO_ASSERT(activation == PostOp::kRelu);
        return PointwiseMode::kReluForward;
    }
  }

  // Adds a virtual tensor between two operations, in the compute type. Its uid is never bound to
  // memory.
  std::size_t intermediate() {
    return tensor(next_virtual_uid_++, compute_type(conv_.dtype), shape_.dst, layouts_.dst, true);
  }
  std::size_t result() { return tensor(kDstUid, data_type(conv_.dtype), shape_.dst, layouts_.dst); }

  OwnedDescriptor convolution() const {
    OwnedDescriptor descriptor(api_, DescriptorType::kConvolution);
    descriptor.set(AttributeName::kConvolutionSpatialDims,
                   static_cast<std::int64_t>(shape_.stride.size()));
    descriptor.set(AttributeName::kConvolutionComputeType, compute_type(conv_.dtype));
    descriptor.set(AttributeName::kConvolutionMode, ConvolutionMode::kCrossCorrelation);
    descriptor.set(AttributeName::kConvolutionPrePaddings, shape_.pad);
    descriptor.set(AttributeName::kConvolutionPostPaddings, shape_.pad_after);
    descriptor.set(AttributeName::kConvolutionDilations, shape_.dilation);
    descriptor.set(AttributeName::kConvolutionFilterStrides, shape_.stride);
    descriptor.finalize("the convolution");
    return descriptor;
  }

  // The names that cuDNN gives the parts of the operation of one direction.
  struct OperationNames {
    DescriptorType type;
    AttributeName convolution, alpha, beta, src, weights, dst;
  };
  static OperationNames names_of(Direction direction) {
    using enum AttributeName;
    switch (direction) {
      case Direction::kForward:
        return {DescriptorType::kOperationConvolutionForward,
                kForwardConvolution,
                kForwardAlpha,
                kForwardBeta,
                kForwardX,
                kForwardW,
                kForwardY};
      case Direction::kBackwardData:
        return {DescriptorType::kOperationConvolutionBackwardData,
                kBackwardDataConvolution,
                kBackwardDataAlpha,
                kBackwardDataBeta,
                kBackwardDataDx,
                kBackwardDataW,
                kBackwardDataDy};
      case Direction::kBackwardFilter:
        break;
    }
    return {DescriptorType::kOperationConvolutionBackwardFilter,
            kBackwardFilterConvolution,
            kBackwardFilterAlpha,
            kBackwardFilterBeta,
            kBackwardFilterX,
            kBackwardFilterDw,
            kBackwardFilterDy};
  }

  void add_convolution(std::size_t src, std::size_t weights, std::size_t dst) {
    const OperationNames names = names_of(conv_.direction);
    const std::size_t descriptor = keep(convolution());
    OwnedDescriptor operation(api_, names.type);
    operation.set(names.src, parts_[src]);
    operation.set(names.weights, parts_[weights]);
    operation.set(names.dst, parts_[dst]);
    operation.set(names.convolution, parts_[descriptor]);
    if (compute_type(conv_.dtype) == DataType::kDouble) {
      operation.set(names.alpha, 1.0);
      operation.set(names.beta, 0.0);
    } else {
      operation.set(names.alpha, 1.0F);
      operation.set(names.beta, 0.0F);
    }
    operation.finalize("the convolution operation");
    operations_.push_back(operation.get());
    keep(std::move(operation));
  }

  std::size_t add_pointwise(PointwiseMode mode, std::size_t input,
                            std::optional<std::size_t> second, bool is_last) {
    OwnedDescriptor pointwise(api_, DescriptorType::kPointwise);
    pointwise.set(AttributeName::kPointwiseMode, mode);
    pointwise.set(AttributeName::kPointwiseMathPrecision, compute_type(conv_.dtype));
    pointwise.finalize("a pointwise descriptor");
    const std::size_t output = is_last ? result() : intermediate();
    OwnedDescriptor operation(api_, DescriptorType::kOperationPointwise);
    operation.set(AttributeName::kOperationPointwiseDescriptor, pointwise);
    operation.set(AttributeName::kOperationPointwiseX, parts_[input]);
    if (second) operation.set(AttributeName::kOperationPointwiseB, parts_[*second]);
    operation.set(AttributeName::kOperationPointwiseY, parts_[output]);
    operation.finalize("a pointwise operation");
    operations_.push_back(operation.get());
    keep(std::move(pointwise));
    keep(std::move(operation));
    return output;
  }

  OperationGraph finish(Pattern pattern, Handle handle) {
    OwnedDescriptor graph(api_, DescriptorType::kOperationGraph);
    if (handle != nullptr) {
      graph.set_raw(AttributeName::kOperationGraphHandle, AttributeType::kHandle, 1, &handle);
    }
    graph.set_raw(AttributeName::kOperationGraphOps, AttributeType::kDescriptor,
                  static_cast<std::int64_t>(operations_.size()), operations_.data());
    graph.finalize("the operation graph");
    return {pattern, std::move(parts_), std::move(graph)};
  }

  const Api& api_;
  const ConvProblem& conv_;
  const Layouts layouts_;
  const std::int64_t alignment_;
  const ConvShape shape_;
  std::vector<OwnedDescriptor> parts_;
  std::vector<Descriptor> operations_;
  std::int64_t next_virtual_uid_ = 'A';
};

}  // namespace

std::vector<Layouts> all_layouts() {
  std::vector<Layouts> all;
  for (const Layout src : {Layout::kNchw, Layout::kNhwc}) {
    for (const Layout weights : {Layout::kNchw, Layout::kNhwc}) {
      for (const Layout dst : {Layout::kNchw, Layout::kNhwc}) all.push_back({src, weights, dst});
    }
  }
  return all;
}

ConvShape shape_of(const ConvProblem& conv) {
  const auto image = [&](std::int64_t d, std::int64_t h, std::int64_t w) {
    return conv.is_3d ? Sizes{d, h, w} : Sizes{h, w};
  };
  Sizes src = image(conv.d, conv.h, conv.w);
  src.insert(src.begin(), {conv.n, conv.c});
  return {std::move(src),
          weight_sizes(conv),
          conv_dst_sizes(conv),
          image(conv.stride_d, conv.stride_h, conv.stride_w),
          image(conv.pad_d, conv.pad_h, conv.pad_w),
          image(conv.pad_d, conv.pad_h + conv.extra_h, conv.pad_w + conv.extra_w),
          image(conv.dilation_d, conv.dilation_h, conv.dilation_w)};
}

DataType data_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return DataType::kDouble;
    case DType::kF16:
      return DataType::kHalf;
    case DType::kBf16:
      return DataType::kBfloat16;
    case DType::kF32:
    case DType::kTf32:
      break;
  }
  return DataType::kFloat;
}

DataType compute_type(DType dtype) {
  return dtype == DType::kF64 ? DataType::kDouble : DataType::kFloat;
}

OperationGraph build_graph(const Api& api, const ConvProblem& conv, const Layouts& layouts,
                           Handle handle, std::int64_t alignment) {
  const auto pattern = pattern_of(conv);
  TORCHALGO_ASSERT(pattern.has_value());
  TORCHALGO_ASSERT(!is_blocked(layouts.src) && !is_blocked(layouts.weights) &&
                   !is_blocked(layouts.dst));
  return GraphBuilder(api, conv, layouts, alignment).build(*pattern, handle);
}

}  // namespace torchalgo::cudnn
