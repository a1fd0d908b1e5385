// SPDX-License-Identifier: BSD-3-Clause
#include "ops/planned_op.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "ir/view.h"
#include "ops/settings.h"
#include "provider/cuda_device.h"
#include "provider/epilogue.h"
#include "provider/memory.h"
#include "provider/packing.h"

namespace torchalgo {
namespace {

std::atomic<std::int64_t> ops_alive = 0;

// The number of other input sizes for which an op keeps executions.
constexpr std::size_t kMaxOthers = 8;

Layout read_layout(const OpState& state, const std::string& text) {
  const auto layout = parse_layout(text);
  TORCHALGO_CHECK(layout, "TA4003 torchalgo: layer '{}': {}", state.layer, refuse_layout(text));
  return *layout;
}

bool lies_as(const at::Tensor& tensor, const TensorShape& shape, at::ScalarType dtype,
             at::Device device) {
  return tensor.defined() && tensor.scalar_type() == dtype && tensor.device() == device &&
         tensor.layout() == at::kStrided && tensor.sizes() == at::IntArrayRef(shape.sizes) &&
         tensor.strides() == at::IntArrayRef(shape.strides);
}

// Returns true if [n, c, w] may stand for [n, c, 1, w], since a 1-D layer is planned as a 2-D one.
// A filter of several rows belongs to a 2-D layer, whose inputs of rank 3 are images without a
// batch.
bool may_be_1d(const Problem& problem) {
  const auto has_one_row = [](const std::vector<std::int64_t>& sizes) {
    return sizes.size() == 4 && sizes[2] == 1;
  };
  const auto* conv = std::get_if<ConvProblem>(&problem);
  if (conv != nullptr && conv->r != 1) return false;
  const auto inputs = input_sizes(problem);
  return std::all_of(inputs.begin(), inputs.end(), has_one_row) &&
         has_one_row(result_sizes(problem));
}

// Returns the part's memory as a blocked tensor of `form`; undefined if it does not fit there.
at::Tensor tensor_in(const ResultPart& part, const ResultForm& form) {
  const at::Tensor& buffer = part.buffer;
  const auto& [sizes, strides] = form.shape;
  if (sizes.size() != 5 || buffer.dim() != 5 || sizes[0] != 1 || buffer.size(0) != 1) return {};
  if (buffer.scalar_type() != form.dtype || buffer.device() != form.device ||
      !buffer.is_contiguous()) {
    return {};
  }
  const bool is_same_image = buffer.size(2) == sizes[2] && buffer.size(3) == sizes[3];
  if (!is_same_image || buffer.size(4) != sizes[4] || part.channel % sizes[4] != 0) return {};
  const std::int64_t block = part.channel / sizes[4];
  if (block < 0 || block + sizes[1] > buffer.size(1)) return {};
  return buffer.as_strided(sizes, strides, buffer.storage_offset() + block * strides[1]);
}

// Returns the layout of the result of `resolution`.
Layout dst_layout(const Resolution& resolution, const Primitive& planned) {
  if (!resolution.kernel) return planned.dst;
  return result_layout(resolution.kernel->problem, resolution.kernel->primitive);
}

// Returns true if the result has the height and width `size`, or if `size` is empty. Each layout
// has them in the same dimensions.
bool has_size(at::IntArrayRef dst, at::IntArrayRef size) {
  return size.empty() || (dst.size() >= 4 && dst.slice(2, 2) == size);
}

int threads_on(at::Device device) { return device.is_cpu() ? at::get_num_threads() : 0; }

// Kernels are enqueued on the current GPU, so the device is made current; nullopt for the CPU.
std::optional<at::Device> to_make_current(at::Device device) {
  return device.is_cpu() ? std::nullopt : std::optional(device);
}

}  // namespace

PlannedOp::Alive::Alive() { ++ops_alive; }
PlannedOp::Alive::~Alive() {
  if (--ops_alive == 0) release_idle_memory();
}

PlannedOp::PlannedOp(OpState state, const Algorithms& algorithms)
    : state_(std::move(state)),
      algorithms_(&algorithms),
      problem_(parse_problem(state_.problem)),
      planned_primitive_{state_.primitive, read_layout(state_, state_.src),
                         read_layout(state_, state_.dst)},
      from_(input_layout(problem_, planned_primitive_)),
      to_(result_layout(problem_, planned_primitive_)),
      weights_(state_.weights),
      planned_sizes_(input_sizes(problem_)),
      dtype_(scalar_type(dtype_of(problem_))),
      from_dtype_(scalar_type(element_type(from_, dtype_of(problem_)))),
      to_dtype_(scalar_type(element_type(to_, dtype_of(problem_)))),
      has_residual_(has(epilogue_of(problem_), PostOp::kAdd)),
      may_be_1d_(may_be_1d(problem_)) {
  const bool is_strided = !is_blocked(from_) && !is_blocked(to_);
  const bool is_nchw = from_ == Layout::kNchw && to_ == Layout::kNchw;
  const std::size_t rank = planned_sizes_[0].size();
  TORCHALGO_CHECK(rank == 4 || is_nchw || (rank == 5 && is_strided),
                  "TA4303 torchalgo: layer '{}': cannot change {} to {} for a tensor of rank {} "
                  "({}); blocked layouts need rank 4",
                  state_.layer, state_.src, state_.dst, rank, state_.problem);
  const std::vector<Problem> layers = layers_of(problem_);
  TORCHALGO_CHECK(
      layers.size() == weights_.size(),
      "TA4302 torchalgo: layer '{}': got the weights of {} convolutions, expected those of {} ({})",
      state_.layer, weights_.size(), layers.size(), state_.problem);
  for (std::size_t i = 0; i < layers.size(); ++i) check_weights(layers[i], weights_[i]);
  prepare();
}

std::optional<at::Device> PlannedOp::weights_device() const {
  for (const LayerWeights& layer : weights_) {
    if (layer.weights.defined()) return layer.weights.device();
    if (layer.bias.defined()) return layer.bias.device();
  }
  return std::nullopt;
}

void PlannedOp::prepare() {
  const Algorithm* planned = find_algorithm(*algorithms_, planned_primitive_.name);
  // An op without weights runs on the device of its first input.
  if (!weights_device() && planned != nullptr && !planned->runs_on_cpu) return;
  const at::Device device = weights_device().value_or(at::kCPU);
  warn_of_fallback(*find_or_make_execution(planned_sizes_, {}, device));
  is_prepared_ = true;
}

void PlannedOp::warn_of_fallback(const Execution& execution) const {
  if (execution.resolution.step == Step::kPlanned) return;
  TORCH_WARN("torchalgo: layer '", state_.layer, "' was planned for ", state_.primitive, " ",
             state_.src, "->", state_.dst, "; ", execution.resolution.name(),
             " runs instead: ", execution.resolution.reason);
}

at::Tensor PlannedOp::run(std::span<const at::Tensor> src, const at::Tensor& residual,
                          const ResultPart* part, at::IntArrayRef size) const {
  const int threads = at::get_num_threads();
  const Execution* execution = planned_.load(std::memory_order_acquire);
  for (; execution != nullptr; execution = execution->next) {
    if (execution->threads != threads && execution->threads != 0) continue;
    if (fits(*execution, src, residual, size)) [[likely]]
      return execute(*execution, src, residual, part);
  }
  return run_unusual(src, residual, part, size);
}

bool PlannedOp::fits(const Execution& execution, std::span<const at::Tensor> src,
                     const at::Tensor& residual, at::IntArrayRef size) const {
  const auto& inputs = execution.inputs;
  if (!has_size(execution.dst.shape.sizes, size)) return false;
  if (src.size() + (has_residual_ ? 1 : 0) != inputs.size()) return false;
  for (std::size_t i = 0; i < src.size(); ++i) {
    if (!lies_as(src[i], inputs[i], from_dtype_, execution.dst.device)) return false;
  }
  return has_residual_ ? lies_as(residual, inputs.back(), to_dtype_, execution.dst.device)
                       : !residual.defined();
}

at::Tensor PlannedOp::run_unusual(std::span<const at::Tensor> src, const at::Tensor& residual,
                                  const ResultPart* part, at::IntArrayRef size) const {
  Inputs inputs = read_inputs(src, residual);
  const bool is_1d = src[0].dim() == 3 && !is_blocked(to_);
  const auto as_src = [&](const at::Tensor& dst) { return is_1d ? dst.squeeze(2) : dst; };
  if (inputs.src[0].is_meta()) return as_src(run_on_meta(inputs, part, size));
  if (inputs.sizes[0][0] == 0) {  // an empty batch: nothing to compute
    const TensorShape none = result_shape(inputs.sizes, size);
    return as_src(empty_reused(none.sizes, none.strides, to_dtype_, inputs.src[0].device()));
  }
  const ExecutionPtr execution = find_or_make_execution(inputs.sizes, size, inputs.src[0].device());
  if (!is_prepared_.exchange(true)) warn_of_fallback(*execution);
  return as_src(execute(*execution, inputs.src, inputs.residual, part));
}

// Returns the shape of the result in memory. The batch may be empty, although no problem has n = 0.
TensorShape PlannedOp::result_shape(std::vector<Sizes> sizes, at::IntArrayRef size) const {
  const bool is_empty = sizes[0][0] == 0;
  if (is_empty) {
    for (auto& each : sizes) each[0] = 1;
  }
  Sizes result = result_sizes(problem_for(sizes, size));
  if (is_empty) result[0] = 0;
  return shape_in(result, to_);
}

at::Tensor PlannedOp::run_on_meta(const Inputs& inputs, const ResultPart* part,
                                  at::IntArrayRef size) const {
  if (is_view(planned_primitive_.name) && inputs.sizes[0][0] != 0) {
    const ExecutionPtr execution = find_or_make_execution(inputs.sizes, size, at::kCPU);
    const auto& kernel = execution->resolution.kernel;
    if (kernel && is_view(kernel->primitive.name))
      return kernel->run({*execution->packed, inputs.src, inputs.residual, {}, nullptr});
  }
  const TensorShape shape = result_shape(inputs.sizes, size);
  at::Tensor dst;
  if (part != nullptr) dst = tensor_in(*part, {shape, to_dtype_, at::kMeta});
  if (dst.defined()) return dst;
  return at::empty_strided(shape.sizes, shape.strides,
                           at::TensorOptions(to_dtype_).device(at::kMeta));
}

PlannedOp::ExecutionPtr PlannedOp::find_or_make_execution(const std::vector<Sizes>& sizes,
                                                          at::IntArrayRef size,
                                                          at::Device device) const {
  const int threads = threads_on(device);
  const bool is_planned = sizes == planned_sizes_ && has_size(result_sizes(problem_), size);
  const auto fits_call = [&](const ExecutionPtr& execution) {
    return execution->dst.device == device && execution->threads == threads &&
           execution->sizes == sizes && has_size(execution->dst.shape.sizes, size);
  };
  const std::lock_guard lock(mutex_);
  if (is_planned) {
    const auto it = std::find_if(planned_owners_.begin(), planned_owners_.end(), fits_call);
    if (it != planned_owners_.end()) return *it;
    const auto execution = make_execution(sizes, size, device);
    execution->next = planned_.load(std::memory_order_relaxed);
    planned_owners_.push_back(execution);
    planned_.store(execution.get(), std::memory_order_release);
    return execution;
  }
  const auto it = std::find_if(others_.begin(), others_.end(), fits_call);
  if (it != others_.end()) {
    others_.splice(others_.begin(), others_, it);
  } else {
    others_.push_front(make_execution(sizes, size, device));
    if (others_.size() > kMaxOthers) others_.pop_back();
  }
  return others_.front();
}

std::shared_ptr<PlannedOp::Execution> PlannedOp::make_execution(const std::vector<Sizes>& sizes,
                                                                at::IntArrayRef size,
                                                                at::Device device) const {
  auto execution = std::make_shared<Execution>();
  const Problem problem = problem_for(sizes, size);
  execution->threads = threads_on(device);
  execution->sizes = sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const bool is_residual = has_residual_ && i + 1 == sizes.size();
    execution->inputs.push_back(shape_in(sizes[i], is_residual ? to_ : from_));
  }
  const c10::OptionalDeviceGuard current(to_make_current(device));
  execution->resolution = resolve(planned_primitive_, problem, *algorithms_, device_of(device));
  const Layout dst = dst_layout(execution->resolution, planned_primitive_);
  execution->dst = result_form(problem, dst, device);
  execution->packed = find_packed(*execution);
  return execution;
}

// Returns weights that were packed for a kernel that can share them. Else packs them.
std::shared_ptr<const Packed> PlannedOp::find_packed(const Execution& execution) const {
  const Resolution& resolution = execution.resolution;
  if (!resolution.kernel) return std::make_shared<const Packed>();
  const Kernel& wanted = *resolution.kernel;
  const auto serves = [&](const ExecutionPtr& known) {
    if (known->resolution.algorithm != resolution.algorithm) return false;
    const Kernel& kernel = *known->resolution.kernel;
    if (wanted.packing.empty())
      return kernel.primitive == wanted.primitive && kernel.problem == wanted.problem;
    return kernel.packing == wanted.packing &&
           epilogue_of(kernel.problem) == epilogue_of(wanted.problem);
  };
  for (const auto& known : planned_owners_) {
    if (serves(known)) return known->packed;
  }
  for (const auto& known : others_) {
    if (serves(known)) return known->packed;
  }
  return std::make_shared<const Packed>(pack_to_weight_pages(*resolution.kernel, weights_));
}

std::int64_t PlannedOp::packed_bytes() const {
  const std::lock_guard lock(mutex_);
  std::set<const Packed*> counted;
  std::int64_t bytes = 0;
  const auto add = [&](const ExecutionPtr& execution) {
    if (!counted.insert(execution->packed.get()).second) return;
    bytes += held_bytes(*execution->packed, weights_);
  };
  std::for_each(planned_owners_.begin(), planned_owners_.end(), add);
  std::for_each(others_.begin(), others_.end(), add);
  return bytes;
}

at::Tensor PlannedOp::execute(const Execution& execution, std::span<const at::Tensor> src,
                              const at::Tensor& residual, const ResultPart* part) const {
  const Resolution& resolution = execution.resolution;
  const c10::OptionalDeviceGuard current(to_make_current(execution.dst.device));
  if (resolution.step == Step::kPlanned) [[likely]]
    return run_kernel(execution, src, residual, part);
  count_fallback(state_.layer, resolution.reason);
  TORCHALGO_CHECK(
      !is_strict(),
      "TA4307 torchalgo: layer '{}' cannot run as planned, and set_strict(True) forbids {}: {}; "
      "choose another algorithm, or call torchalgo.set_strict(False)",
      state_.layer, resolution.name(), resolution.reason);
  if (resolution.step == Step::kAten) return run_aten(execution, src, residual);
  const bool is_added_later = has(resolution.rest, PostOp::kAdd);
  at::Tensor dst = run_kernel(execution, src, is_added_later ? at::Tensor() : residual, part);
  apply_epilogue(dst, resolution.rest, weights_.back().bias, residual);
  return dst;
}

at::Tensor PlannedOp::run_kernel(const Execution& execution, std::span<const at::Tensor> src,
                                 const at::Tensor& residual, const ResultPart* part) const {
  const Resolution& resolution = execution.resolution;
  // Profilers show this name. It is that of the primitive that runs, planned or not.
  RECORD_FUNCTION(fmt::format("{} {}", to_string(resolution.kernel->primitive), state_.layer),
                  std::vector<c10::IValue>());
  const Kernel& kernel = *resolution.kernel;
  at::Tensor dst;
  if (part != nullptr && !kernel.makes_dst) dst = tensor_in(*part, execution.dst);
  return run_prepared(kernel, *execution.packed, src, residual, execution.dst, std::move(dst));
}

at::Tensor PlannedOp::run_aten(const Execution& execution, std::span<const at::Tensor> src,
                               const at::Tensor& residual) const {
  const Resolution& resolution = execution.resolution;
  std::vector<at::Tensor> nchw;
  for (std::size_t i = 0; i < src.size(); ++i) {
    nchw.push_back(to_nchw(src[i], from_, execution.sizes[i][1]).to(dtype_));
  }
  if (resolution.algorithm == nullptr) {
    at::Tensor dst = from_nchw(nchw[0].to(to_dtype_), to_);
    // No op of ours returns its input: the schemas promise a new tensor.
    return dst.is_alias_of(src[0]) ? dst.clone() : dst;
  }
  at::Tensor dst = run_kernel(execution, nchw, {}, nullptr);
  at::Tensor residual_nchw;
  if (has_residual_) residual_nchw = to_nchw(residual, to_, execution.sizes.back()[1]).to(dtype_);
  const at::Tensor& bias = weights_.back().bias;
  apply_epilogue(dst, resolution.rest, bias, residual_nchw);
  return from_nchw(dst.to(to_dtype_), to_);
}

}  // namespace torchalgo
