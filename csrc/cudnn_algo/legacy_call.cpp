// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/legacy_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "base/error.h"
#include "cudnn_algo/execution.h"
#include "cudnn_algo/handles.h"
#include "cudnn_algo/refusal.h"
#include "cudnn_algo/run.h"
#include "provider/tensor_shape.h"

namespace torchalgo::cudnn {
namespace {

using Ints = std::vector<int>;

// Converts to int. `legacy_absence` has refused all values that do not fit.
Ints to_ints(at::IntArrayRef values) {
  Ints ints;
  for (const std::int64_t value : values) ints.push_back(static_cast<int>(value));
  return ints;
}

void set_tensor(const Api& api, const OwnedLegacy& tensor, const ConvProblem& conv,
                const std::vector<std::int64_t>& sizes, Layout layout) {
  const Ints size = to_ints(sizes), stride = to_ints(dense_strides(sizes, layout));
  check(api,
        api.legacy.set_tensor(tensor.get(), data_type(conv.dtype), static_cast<int>(size.size()),
                              size.data(), stride.data()),
        "cudnnSetTensorNdDescriptor");
}

void set_filter(const Api& api, const OwnedLegacy& filter, const ConvProblem& conv, Layout layout) {
  const Ints size = to_ints(weight_sizes(conv));
  const auto format = layout == Layout::kNhwc ? TensorFormat::kNhwc : TensorFormat::kNchw;
  check(api,
        api.legacy.set_filter(filter.get(), data_type(conv.dtype), format,
                              static_cast<int>(size.size()), size.data()),
        "cudnnSetFilterNdDescriptor");
}

void set_convolution(const Api& api, const OwnedLegacy& convolution, const ConvProblem& p,
                     MathType math) {
  const ConvShape shape = shape_of(p);
  const Ints pad = to_ints(shape.pad), stride = to_ints(shape.stride);
  const Ints dilation = to_ints(shape.dilation);
  check(api,
        api.legacy.set_convolution(convolution.get(), static_cast<int>(pad.size()), pad.data(),
                                   stride.data(), dilation.data(),
                                   ConvolutionMode::kCrossCorrelation, compute_type(p.dtype)),
        "cudnnSetConvolutionNdDescriptor");
  check(api, api.legacy.set_groups(convolution.get(), static_cast<int>(p.groups)),
        "cudnnSetConvolutionGroupCount");
  check(api, api.legacy.set_math_type(convolution.get(), math), "cudnnSetConvolutionMathType");
}

bool has_all_functions(const Api::Legacy& legacy) {
  return legacy.create_tensor && legacy.create_filter && legacy.create_convolution &&
         legacy.destroy_tensor && legacy.destroy_filter && legacy.destroy_convolution &&
         legacy.set_tensor && legacy.set_filter && legacy.set_convolution && legacy.set_groups &&
         legacy.set_math_type && legacy.get_forward_workspace &&
         legacy.get_backward_data_workspace && legacy.get_backward_filter_workspace &&
         legacy.run_forward && legacy.run_backward_data && legacy.run_backward_filter;
}

const char* function_name(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "cudnnConvolutionForward";
    case Direction::kBackwardData:
      return "cudnnConvolutionBackwardData";
    case Direction::kBackwardFilter:
      break;
  }
  return "cudnnConvolutionBackwardFilter";
}

struct LegacyExecutable final : Executable {
  LegacyExecutable(const Api& api, const ConvProblem& conv, const Layouts& layouts, MathType math)
      : descriptors(api, conv, layouts, math) {}
  const LegacyDescriptors descriptors;
};

std::shared_ptr<Executable> build(const OwnHandle& handle, const LegacySpec& spec,
                                  const EngineCall& call) {
  const Api& api = *handle.api;
  const auto& conv = std::get<ConvProblem>(call.problem);
  const auto absence = legacy_absence(api, conv);
  TORCHALGO_CHECK(!absence, "TA5101 cuDNN cannot run: {} ({})", *absence, describe(api, call));
  auto executable = std::make_shared<LegacyExecutable>(api, conv, layouts_of(call.primitive),
                                                       math_type(spec, conv.dtype));
  std::size_t bytes = 0;
  check(api, executable->descriptors.ask_workspace(handle.raw, spec.number, &bytes),
        fmt::format("{}: get its workspace size", function_name(spec.direction)));
  executable->workspace_bytes = static_cast<std::int64_t>(bytes);
  return executable;
}

// The tensors' data, in the order of the arguments of the direction's function.
struct Operands {
  const void *a, *b;
  void* c;
};

Operands bind(Direction direction, const EngineCall& call, AlignedTensors& tensors) {
  void* const c = tensors.output(call.args.dst);
  switch (direction) {
    case Direction::kForward:
      return {tensors.input(call.args.src[0]), tensors.input(call.args.packed[0].weights), c};
    case Direction::kBackwardData:
      return {tensors.input(call.args.packed[0].weights), tensors.input(call.args.src[0]), c};
    case Direction::kBackwardFilter:
      break;
  }
  return {tensors.input(call.args.src[0]), tensors.input(call.args.src[1]), c};
}

}  // namespace

std::optional<std::string> legacy_absence(const Api& api, const ConvProblem& conv) {
  if (!has_all_functions(api.legacy)) {
    return fmt::format("cuDNN {} has no legacy convolution functions", version_text(api));
  }
  return size_refusal(conv);
}

OwnedLegacy::OwnedLegacy(const Api& api, const Create& create, const Destroy& destroy)
    : destroy_(&destroy) {
  check(api, create(&raw_), "create a legacy descriptor");
}

LegacyDescriptors::LegacyDescriptors(const Api& api, const ConvProblem& conv,
                                     const Layouts& layouts, MathType math)
    : api_(api),
      direction_(conv.direction),
      is_double_(compute_type(conv.dtype) == DataType::kDouble),
      src_(api, api.legacy.create_tensor, api.legacy.destroy_tensor),
      weights_(api, api.legacy.create_filter, api.legacy.destroy_filter),
      dst_(api, api.legacy.create_tensor, api.legacy.destroy_tensor),
      convolution_(api, api.legacy.create_convolution, api.legacy.destroy_convolution) {
  set_tensor(api, src_, conv, shape_of(conv).src, layouts.src);
  set_filter(api, weights_, conv, layouts.weights);
  set_tensor(api, dst_, conv, conv_dst_sizes(conv), layouts.dst);
  set_convolution(api, convolution_, conv, math);
}

Status LegacyDescriptors::ask_workspace(Handle handle, int number, std::size_t* bytes) const {
  TORCHALGO_ASSERT(handle != nullptr);
  const Api::Legacy& legacy = api_.legacy;
  switch (direction_) {
    case Direction::kForward:
      return legacy.get_forward_workspace(handle, src_.get(), weights_.get(), convolution_.get(),
                                          dst_.get(), number, bytes);
    case Direction::kBackwardData:
      return legacy.get_backward_data_workspace(handle, weights_.get(), dst_.get(),
                                                convolution_.get(), src_.get(), number, bytes);
    case Direction::kBackwardFilter:
      break;
  }
  return legacy.get_backward_filter_workspace(handle, src_.get(), dst_.get(), convolution_.get(),
                                              weights_.get(), number, bytes);
}

Status LegacyDescriptors::run(Handle handle, int number, const void* a, const void* b, void* c,
                              void* workspace, std::size_t bytes) const {
  TORCHALGO_ASSERT(handle != nullptr);
  static constexpr float kOne = 1, kZero = 0;
  static constexpr double kDoubleOne = 1, kDoubleZero = 0;
  const void* const alpha = is_double_ ? static_cast<const void*>(&kDoubleOne) : &kOne;
  const void* const beta = is_double_ ? static_cast<const void*>(&kDoubleZero) : &kZero;
  const Api::Legacy& legacy = api_.legacy;
  switch (direction_) {
    case Direction::kForward:
      return legacy.run_forward(handle, alpha, src_.get(), a, weights_.get(), b, convolution_.get(),
                                number, workspace, bytes, beta, dst_.get(), c);
    case Direction::kBackwardData:
      return legacy.run_backward_data(handle, alpha, weights_.get(), a, dst_.get(), b,
                                      convolution_.get(), number, workspace, bytes, beta,
                                      src_.get(), c);
    case Direction::kBackwardFilter:
      break;
  }
  return legacy.run_backward_filter(handle, alpha, src_.get(), a, dst_.get(), b, convolution_.get(),
                                    number, workspace, bytes, beta, weights_.get(), c);
}

at::Tensor run_legacy(const std::shared_ptr<const Api>& api, const Runtime& runtime,
                      const LegacySpec& spec, const EngineCall& call, LegacyStates& states) {
  const auto on_device = runtime.on_device(call.args.dst.device().index());
  with_description(*api, call, [&] {
    OwnHandle& handle = handle_of_thread(api, runtime);
    const auto executable = find_or_build(states.of(handle.raw), runtime, handle, call,
                                          [&] { return build(handle, spec, call); });
    const Workspace workspace(*api, *executable, call);
    AlignedTensors tensors;
    const Operands operands = bind(spec.direction, call, tensors);
    const auto& descriptors = static_cast<const LegacyExecutable&>(*executable).descriptors;
    check(*api,
          descriptors.run(handle.raw, spec.number, operands.a, operands.b, operands.c,
                          workspace.data(), static_cast<std::size_t>(executable->workspace_bytes)),
          function_name(spec.direction));
    note_run(executable, runtime);
    tensors.finish();
  });
  return call.args.dst;
}

}  // namespace torchalgo::cudnn
