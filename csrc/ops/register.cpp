// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/strides.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "ops/planned_op_checks.h"
#include "ops/script_classes.h"
#include "provider/memory.h"

namespace torchalgo {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

using LayerTensors = c10::List<OptionalTensor>;  // weights and bias of each layer in turn

// The plain data that a file holds. Version 2: problem, primitive, src, dst, layer, tensors.
// Version 1 had weights and bias, of one layer, in place of the list.
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
                  "TA4302 torchalgo: layer '{}': got {} tensors, expected the weights and the bias "
                  "of each layer",
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
  if (!value.isTensor()) return {};
  TORCHALGO_CHECK(lies_in_its_memory(value.toTensor()),
                  "TA2005 torchalgo: a weight is larger than its memory: the file is damaged, copy "
                  "or save it again");
  return value.toTensor().detach();
}

// The state is any value, because its type differs between versions.
template <typename PackedType>
c10::intrusive_ptr<PackedType> set_state(const c10::IValue& pickled) {
  constexpr std::size_t kTexts = 6;  // the version and the texts
  TORCHALGO_CHECK(pickled.isTuple() && pickled.toTupleRef().elements().size() > kTexts &&
                      pickled.toTupleRef().elements()[0].isInt(),
                  "TA2005 torchalgo: a layer's state was not written by torchalgo: the file is "
                  "damaged, copy or save it again");
  const auto& fields = pickled.toTupleRef().elements();
  const std::int64_t version = fields[0].toInt();
  const auto text = [&](std::size_t i) { return fields[i].toStringRef(); };
  TORCHALGO_CHECK(version >= 1 && version <= kStateVersion,
                  "TA2008 torchalgo: layer '{}' was saved in format {}, this torchalgo reads "
                  "formats 1 to {}: update torchalgo or optimize the model again",
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

// These are lambdas because class_ accepts nothing else.
template <typename PackedType>
void add_class(torch::Library& library, const char* name) {
  auto added = library.class_<PackedType>(name);
  add_tracing_methods(added);
  added
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

// The arguments `primitive` and `layer` of the ops below repeat data of `packed` for readers of a
// graph or a trace. The ops do not read them.

// An op with a buffer writes into it from `channel` on and returns that part of it.

at::Tensor run_on_list(at::TensorList src, const PlannedOp& op, const ResultPart* part) {
  if (!op.has_residual() || src.empty()) return op.run({src.data(), src.size()}, {}, part);
  return op.run({src.data(), src.size() - 1}, src.back(), part);
}

at::Tensor run_conv(const at::Tensor& src, const c10::intrusive_ptr<PackedConv>& packed,
                    const OptionalTensor& residual, std::string_view, std::string_view) {
  return packed->op.run({&src, 1}, residual ? *residual : at::Tensor());
}

at::Tensor run_conv_out(const at::Tensor& src, const c10::intrusive_ptr<PackedConv>& packed,
                        const OptionalTensor& residual, const at::Tensor& buffer,
                        std::int64_t channel, std::string_view, std::string_view) {
  const ResultPart part = {buffer, channel};
  return packed->op.run({&src, 1}, residual ? *residual : at::Tensor(), &part);
}

at::Tensor run_op(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed, std::string_view,
                  std::string_view) {
  return run_on_list(src, packed->op, nullptr);
}

at::Tensor run_op_out(at::TensorList src, const c10::intrusive_ptr<PackedOp>& packed,
                      const at::Tensor& buffer, std::int64_t channel, std::string_view,
                      std::string_view) {
  const ResultPart part = {buffer, channel};
  return run_on_list(src, packed->op, &part);
}

// Computes a result of a height and width that the graph computes in each call.
at::Tensor run_sized(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                     at::IntArrayRef size, std::string_view, std::string_view) {
  return packed->op.run({&src, 1}, {}, nullptr, size);
}

at::Tensor run_sized_out(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                         at::IntArrayRef size, const at::Tensor& buffer, std::int64_t channel,
                         std::string_view, std::string_view) {
  const ResultPart part = {buffer, channel};
  return packed->op.run({&src, 1}, {}, &part, size);
}

// Runs transform, relabel and slice. The results of relabel and slice are memory of `src`.
at::Tensor run_on_one(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                      std::string_view, std::string_view) {
  return run_on_list(src, packed->op, nullptr);
}

at::Tensor transform_out(const at::Tensor& src, const c10::intrusive_ptr<PackedOp>& packed,
                         const at::Tensor& buffer, std::int64_t channel, std::string_view,
                         std::string_view) {
  const ResultPart part = {buffer, channel};
  return run_on_list(src, packed->op, &part);
}

// Allocates memory for the parts of a concatenation, on the device and of the type of `like`.
at::Tensor new_buffer(const at::Tensor& like, at::IntArrayRef sizes) {
  return empty_reused(sizes, c10::contiguous_strides(sizes), like.scalar_type(), like.device());
}

// The parts lie in the buffer, unless an op before had to make a tensor of its own: view.concat.
at::Tensor join(at::TensorList parts, const c10::intrusive_ptr<PackedOp>& packed, const at::Tensor&,
                std::string_view, std::string_view) {
  return run_on_list(parts, packed->op, nullptr);
}

// Raises an error in a call that takes another branch of the model than the example inputs did. The
// graph holds only the block that they took.
void take_branch(bool condition, bool taken, bool, std::string_view source) {
  TORCHALGO_CHECK(condition == taken,
                  "TA4303 torchalgo: inputs of these sizes take another branch of the model than "
                  "the example inputs{}{}: optimize the model for these shapes",
                  source.empty() ? "" : ", at ", source);
}

TORCH_LIBRARY(torchalgo, m) {
  add_class<PackedConv>(m, "PackedConv");
  add_class<PackedOp>(m, "PackedOp");
  // The arguments have no defaults: a file omits arguments that equal the default, so it would
  // change with the default.
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
      "run_sized(Tensor src, __torch__.torch.classes.torchalgo.PackedOp packed, int[] size, *, "
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
      "run_sized_out(Tensor src, __torch__.torch.classes.torchalgo.PackedOp packed, int[] size, "
      "Tensor(a!) buffer, int channel, *, str primitive, str layer) -> Tensor(a!)");
  m.def(
      "transform_out(Tensor src, __torch__.torch.classes.torchalgo.PackedOp packed, "
      "Tensor(a!) buffer, int channel, *, str primitive, str layer) -> Tensor(a!)");
  m.def("new_buffer(Tensor like, int[] sizes) -> Tensor");
  // The op has no result, so torch must not take it for dead code.
  m.def(
      torch::schema("take_branch(bool condition, bool taken, bool other_raises, str source) -> ()",
                    c10::AliasAnalysisKind::CONSERVATIVE),
      take_branch);
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
  m.impl("run_sized", run_sized);
  m.impl("transform", run_on_one);
  m.impl("run_conv_out", run_conv_out);
  m.impl("run_op_out", run_op_out);
  m.impl("run_sized_out", run_sized_out);
  m.impl("transform_out", transform_out);
  m.impl("relabel", run_on_one);
  m.impl("slice", run_on_one);
  m.impl("join", join);
}

template <auto kKernel>
void add_boxed_kernels(torch::Library& m) {
  for (const char* op :
       {"run_conv", "run_op", "run_sized", "transform", "run_conv_out", "run_op_out",
        "run_sized_out", "transform_out", "relabel", "slice", "join"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<kKernel>());
  }
}

TORCH_LIBRARY_IMPL(torchalgo, CPU, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, CUDA, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, Meta, m) { add_kernels(m); }
TORCH_LIBRARY_IMPL(torchalgo, AutogradCPU, m) { add_boxed_kernels<&run_without_derivative>(m); }
TORCH_LIBRARY_IMPL(torchalgo, AutogradCUDA, m) { add_boxed_kernels<&run_without_derivative>(m); }

TORCH_LIBRARY_IMPL(torchalgo, CompositeExplicitAutograd, m) {
  add_boxed_kernels<&refuse_backend>(m);
  m.impl("new_buffer", new_buffer);
}

}  // namespace

const PlannedOp* find_planned_op(const c10::IValue& value) {
  if (!value.isCustomClass()) return nullptr;
  const auto& type = value.toObjectRef().type();
  if (*type == *c10::getCustomClassType<c10::intrusive_ptr<PackedConv>>())
    return &value.toCustomClass<PackedConv>()->op;
  if (*type == *c10::getCustomClassType<c10::intrusive_ptr<PackedOp>>())
    return &value.toCustomClass<PackedOp>()->op;
  return nullptr;
}

}  // namespace torchalgo
