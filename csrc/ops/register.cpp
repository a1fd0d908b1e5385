// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/strides.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "ops/packed.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

using LayerTensors = c10::List<OptionalTensor>;  // weights and bias of each layer in turn

// What a file holds: plain data. Version 2: problem, primitive, src, dst, layer, tensors. Version 1
// had weights and bias, of one layer, in place of the list.
using PickledState = std::tuple<std::int64_t, std::string, std::string, std::string, std::string,
                                std::string, LayerTensors>;
constexpr std::int64_t kStateVersion = 2;

LayerTensors to_list(const Weights& weights) {
  LayerTensors list;
  for (const LayerWeights& layer : weights) {
    for (const at::Tensor& tensor : {layer.weights, layer.bias})
      list.push_back(tensor.defined() ? OptionalTensor(tensor) : std::nullopt);
  }
  return list;
}

Weights from_tensors(const std::vector<at::Tensor>& tensors, const std::string& layer) {
  TORCHALGO_CHECK(!tensors.empty() && tensors.size() % 2 == 0,
                  "torchalgo: layer '{}': got {} tensors, expected weights and bias of each layer",
                  layer, tensors.size());
  Weights weights;
  for (std::size_t i = 0; i < tensors.size(); i += 2)
    weights.push_back({tensors[i], tensors[i + 1]});
  return weights;
}

template <typename PackedType>
PickledState get_state(const c10::intrusive_ptr<PackedType>& packed) {
  const OpState& state = packed->op.state();
  return {kStateVersion, state.problem, state.primitive,       state.src,
          state.dst,     state.layer,   to_list(state.weights)};
}

at::Tensor tensor_of(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().detach() : at::Tensor();
}

// Any value, because the versions differ in their types.
template <typename PackedType>
c10::intrusive_ptr<PackedType> set_state(const c10::IValue& pickled) {
  constexpr std::size_t kTexts = 6;  // the version and the texts
  TORCHALGO_CHECK(
      pickled.isTuple() && pickled.toTupleRef().elements().size() > kTexts &&
          pickled.toTupleRef().elements()[0].isInt(),
      "torchalgo: a layer's state is no tuple that torchalgo wrote: the file is damaged");
  const auto& fields = pickled.toTupleRef().elements();
  const std::int64_t version = fields[0].toInt();
  const auto text = [&](std::size_t i) { return fields[i].toStringRef(); };
  TORCHALGO_CHECK(version >= 1 && version <= kStateVersion,
                  "torchalgo: layer '{}' was saved in format {}, this torchalgo reads formats 1 to "
                  "{}: update torchalgo or optimize the model again",
                  text(5), version, kStateVersion);
  std::vector<at::Tensor> tensors;
  if (version == 1) {
    for (std::size_t i = kTexts; i < fields.size(); ++i) tensors.push_back(tensor_of(fields[i]));
  } else {
    for (const c10::IValue& tensor : fields[kTexts].toListRef())
      tensors.push_back(tensor_of(tensor));
  }
  return c10::make_intrusive<PackedType>(
      OpState{text(1), text(2), text(3), text(4), text(5), from_tensors(tensors, text(5))});
}

// Lambdas: class_ takes nothing else.
template <typename PackedType>
void add_class(torch::Library& library, const char* name) {
  library.class_<PackedType>(name)
      .def("packed_bytes",
           [](const c10::intrusive_ptr<PackedType>& packed) { return packed->op.packed_bytes(); })
      .def_pickle([](const c10::intrusive_ptr<PackedType>& packed) { return get_state(packed); },
                  [](c10::IValue state) { return set_state<PackedType>(state); });
}

template <typename PackedType>
c10::intrusive_ptr<PackedType> pack(std::string problem, std::string primitive, std::string src,
                                    std::string dst, std::string layer, const LayerTensors& list) {
  std::vector<at::Tensor> tensors;
  for (const OptionalTensor tensor : list)
    tensors.push_back(tensor ? tensor->detach() : at::Tensor());
  Weights weights = from_tensors(tensors, layer);
  return c10::make_intrusive<PackedType>(OpState{std::move(problem), std::move(primitive),
                                                 std::move(src), std::move(dst), std::move(layer),
                                                 std::move(weights)});
}

// `primitive` and `layer` of the ops below repeat what `packed` holds, for those who read a graph
// or a trace; `packed` alone decides.

// Ops with a buffer write into it from `channel` on, and return that part of it.

at::Tensor run_conv_in(const at::Tensor& src, const c10::intrusive_ptr<PackedConv>& packed,
                       const OptionalTensor& residual, const Slot* slot) {
  return packed->op.run({&src, 1}, residual ? *residual : at::Tensor(), slot);
}

at::Tensor run_op_in(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed,
                     const Slot* slot) {
  if (!packed->op.has_residual() || src.empty())
    return packed->op.run({src.data(), src.size()}, {}, slot);
  return packed->op.run({src.data(), src.size() - 1}, src.back(), slot);
}

at::Tensor run_conv(const at::Tensor& src, const c10::intrusive_ptr<PackedConv>& packed,
                    const OptionalTensor& residual, std::string_view, std::string_view) {
  return run_conv_in(src, packed, residual, nullptr);
}

at::Tensor run_conv_out(const at::Tensor& src, const c10::intrusive_ptr<PackedConv>& packed,
                        const OptionalTensor& residual, const at::Tensor& buffer,
                        std::int64_t channel, std::string_view, std::string_view) {
  const Slot slot = {buffer, channel};
  return run_conv_in(src, packed, residual, &slot);
}

at::Tensor run_op(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed, std::string_view,
                  std::string_view) {
  return run_op_in(src, packed, nullptr);
}

at::Tensor run_op_out(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed,
                      const at::Tensor& buffer, std::int64_t channel, std::string_view,
                      std::string_view) {
  const Slot slot = {buffer, channel};
  return run_op_in(src, packed, &slot);
}

at::Tensor transform(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                     std::string_view, std::string_view) {
  return run_op_in(src, packed, nullptr);
}

at::Tensor transform_out(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                         const at::Tensor& buffer, std::int64_t channel, std::string_view,
                         std::string_view) {
  const Slot slot = {buffer, channel};
  return run_op_in(src, packed, &slot);
}

// Of relabel and slice: the result is memory of `src`.
at::Tensor view(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed, std::string_view,
                std::string_view) {
  return run_op_in(src, packed, nullptr);
}

// Memory for a concatenation's parts; on the device and of the type of `like`.
at::Tensor new_buffer(const at::Tensor& like, at::IntArrayRef sizes) {
  return empty_reused(sizes, c10::contiguous_strides(sizes), like.scalar_type(), like.device());
}

// The parts lie in the buffer, unless a writer had to make a tensor of its own: see view.concat.
at::Tensor join(at::TensorList parts, const c10::intrusive_ptr<PackedOp>& packed, const at::Tensor&,
                std::string_view, std::string_view) {
  return run_op_in(parts, packed, nullptr);
}

bool needs_grad(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }
bool needs_grad(const OptionalTensor& tensor) { return tensor && needs_grad(*tensor); }
bool needs_grad(at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (needs_grad(tensor)) return true;
  }
  return false;
}

// Of forward-mode differentiation, which no_grad does not end.
bool has_tangent(const at::Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}
bool has_tangent(const OptionalTensor& tensor) { return tensor && has_tangent(*tensor); }
bool has_tangent(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return has_tangent(tensor); });
}

template <typename... Inputs>
void check_inference(const PlannedOp& op, const Inputs&... inputs) {
  TORCHALGO_CHECK(!(has_tangent(inputs) || ...),
                  "torchalgo: layer '{}' is planned for inference and has no derivative, but an "
                  "input is dual (forward-mode AD): use the original model",
                  op.state().layer);
  if (!at::GradMode::is_enabled()) return;
  TORCHALGO_CHECK(!(needs_grad(inputs) || ...),
                  "torchalgo: layer '{}' is planned for inference and has no gradient, but an "
                  "input requires one: use torch.no_grad() or the original model",
                  op.state().layer);
}

at::Tensor run_conv_autograd(const at::Tensor& src, const c10::intrusive_ptr<PackedConv>& packed,
                             const OptionalTensor& residual, std::string_view, std::string_view) {
  check_inference(packed->op, src, residual);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return run_conv_in(src, packed, residual, nullptr);
}

at::Tensor run_conv_out_autograd(const at::Tensor& src,
                                 const c10::intrusive_ptr<PackedConv>& packed,
                                 const OptionalTensor& residual, const at::Tensor& buffer,
                                 std::int64_t channel, std::string_view, std::string_view) {
  check_inference(packed->op, src, residual, buffer);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Slot slot = {buffer, channel};
  return run_conv_in(src, packed, residual, &slot);
}

at::Tensor run_op_autograd(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed,
                           std::string_view, std::string_view) {
  check_inference(packed->op, src);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return run_op_in(src, packed, nullptr);
}

at::Tensor run_op_out_autograd(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed,
                               const at::Tensor& buffer, std::int64_t channel, std::string_view,
                               std::string_view) {
  check_inference(packed->op, src, buffer);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Slot slot = {buffer, channel};
  return run_op_in(src, packed, &slot);
}

// Of transform, relabel and slice.
at::Tensor transform_autograd(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                              std::string_view primitive, std::string_view layer) {
  return run_op_autograd(src, packed, primitive, layer);
}

at::Tensor transform_out_autograd(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                                  const at::Tensor& buffer, std::int64_t channel,
                                  std::string_view primitive, std::string_view layer) {
  return run_op_out_autograd(src, packed, buffer, channel, primitive, layer);
}

at::Tensor join_autograd(at::TensorList parts, const c10::intrusive_ptr<PackedOp>& packed,
                         const at::Tensor&, std::string_view primitive, std::string_view layer) {
  return run_op_autograd(parts, packed, primitive, layer);
}

// Every other backend.
[[noreturn]] void refuse_device(const PlannedOp& op, const at::Tensor& src) {
  throw Error(fmt::format(
      "torchalgo: layer '{}' runs dense tensors on the CPU or on a GPU, got a {} tensor on {}: "
      "move the input there, or run the original model",
      op.state().layer, c10::str(src.layout()), src.device().str()));
}

bool is_served(const at::Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_cuda()) && tensor.layout() == at::kStrided;
}

at::Tensor run_conv_elsewhere(const at::Tensor& src, const c10::intrusive_ptr<PackedConv>& packed,
                              const OptionalTensor& residual, std::string_view, std::string_view) {
  refuse_device(packed->op, is_served(src) && residual ? *residual : src);
}

at::Tensor run_conv_out_elsewhere(const at::Tensor& src,
                                  const c10::intrusive_ptr<PackedConv>& packed,
                                  const OptionalTensor& residual, const at::Tensor&, std::int64_t,
                                  std::string_view primitive, std::string_view layer) {
  return run_conv_elsewhere(src, packed, residual, primitive, layer);
}

at::Tensor run_op_elsewhere(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed,
                            std::string_view primitive, std::string_view layer) {
  for (const at::Tensor& tensor : src) {
    if (!is_served(tensor)) refuse_device(packed->op, tensor);
  }
  return run_op(src, packed, primitive, layer);  // an empty list, which it explains
}

at::Tensor run_op_out_elsewhere(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed,
                                const at::Tensor&, std::int64_t, std::string_view primitive,
                                std::string_view layer) {
  return run_op_elsewhere(src, packed, primitive, layer);
}

// Of transform, relabel and slice.
at::Tensor transform_elsewhere(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                               std::string_view, std::string_view) {
  refuse_device(packed->op, src);
}

at::Tensor transform_out_elsewhere(const at::Tensor& src,
                                   const c10::intrusive_ptr<PackedOp>& packed, const at::Tensor&,
                                   std::int64_t, std::string_view, std::string_view) {
  refuse_device(packed->op, src);
}

at::Tensor join_elsewhere(at::TensorList parts, const c10::intrusive_ptr<PackedOp>& packed,
                          const at::Tensor&, std::string_view primitive, std::string_view layer) {
  return run_op_elsewhere(parts, packed, primitive, layer);
}

TORCH_LIBRARY(torchalgo, m) {
  add_class<PackedConv>(m, "PackedConv");
  add_class<PackedOp>(m, "PackedOp");
  // No defaults: a file drops arguments that equal theirs, and would change with them.
  m.def(
      "pack_conv(str problem, str primitive, str src, str dst, str layer, Tensor?[] tensors) -> "
      "__torch__.torch.classes.torchalgo.PackedConv",
      pack<PackedConv>);
  m.def(
      "pack_op(str problem, str primitive, str src, str dst, str layer, Tensor?[] tensors) -> "
      "__torch__.torch.classes.torchalgo.PackedOp",
      pack<PackedOp>);
  m.def(
      "run_conv(Tensor src, __torch__.torch.classes.torchalgo.PackedConv packed, "
      "Tensor? residual, *, str primitive, str layer) -> Tensor");
  m.def(
      "run_op(Tensor[] src, __torch__.torch.classes.torchalgo.PackedOp packed, *, "
      "str primitive, str layer) -> Tensor");
  m.def(
      "transform(Tensor src, __torch__.torch.classes.torchalgo.PackedOp packed, *, "
      "str primitive, str layer) -> Tensor");
  m.def(
      "run_conv_out(Tensor src, __torch__.torch.classes.torchalgo.PackedConv packed, "
      "Tensor? residual, Tensor(a!) buffer, int channel, *, str primitive, str layer) "
      "-> Tensor(a!)");
  m.def(
      "run_op_out(Tensor[] src, __torch__.torch.classes.torchalgo.PackedOp packed, "
      "Tensor(a!) buffer, int channel, *, str primitive, str layer) -> Tensor(a!)");
  m.def(
      "transform_out(Tensor src, __torch__.torch.classes.torchalgo.PackedOp packed, "
      "Tensor(a!) buffer, int channel, *, str primitive, str layer) -> Tensor(a!)");
  m.def("new_buffer(Tensor like, int[] sizes) -> Tensor");
  m.def(
      "relabel(Tensor(a) src, __torch__.torch.classes.torchalgo.PackedOp packed, *, "
      "str primitive, str layer) -> Tensor(a)");
  m.def(
      "slice(Tensor(a) src, __torch__.torch.classes.torchalgo.PackedOp packed, *, "
      "str primitive, str layer) -> Tensor(a)");
  m.def(
      "join(Tensor[] parts, __torch__.torch.classes.torchalgo.PackedOp packed, Tensor(a) buffer, "
      "*, str primitive, str layer) -> Tensor(a)");
}

void add_kernels(torch::Library& m) {
  m.impl("run_conv", run_conv);
  m.impl("run_op", run_op);
  m.impl("transform", transform);
  m.impl("run_conv_out", run_conv_out);
  m.impl("run_op_out", run_op_out);
  m.impl("transform_out", transform_out);
  m.impl("relabel", view);
  m.impl("slice", view);
  m.impl("join", join);
}

void add_autograd_kernels(torch::Library& m) {
  m.impl("run_conv", run_conv_autograd);
  m.impl("run_op", run_op_autograd);
  m.impl("transform", transform_autograd);
  m.impl("run_conv_out", run_conv_out_autograd);
  m.impl("run_op_out", run_op_out_autograd);
  m.impl("transform_out", transform_out_autograd);
  m.impl("relabel", transform_autograd);
  m.impl("slice", transform_autograd);
  m.impl("join", join_autograd);
}

TORCH_LIBRARY_IMPL(torchalgo, CPU, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, CUDA, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, AutogradCPU, m) { add_autograd_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, AutogradCUDA, m) { add_autograd_kernels(m); }

TORCH_LIBRARY_IMPL(torchalgo, CompositeExplicitAutograd, m) {
  m.impl("run_conv", run_conv_elsewhere);
  m.impl("run_op", run_op_elsewhere);
  m.impl("transform", transform_elsewhere);
  m.impl("run_conv_out", run_conv_out_elsewhere);
  m.impl("run_op_out", run_op_out_elsewhere);
  m.impl("transform_out", transform_out_elsewhere);
  m.impl("relabel", transform_elsewhere);
  m.impl("slice", transform_elsewhere);
  m.impl("join", join_elsewhere);
  m.impl("new_buffer", new_buffer);
}

}  // namespace
}  // namespace torchalgo
