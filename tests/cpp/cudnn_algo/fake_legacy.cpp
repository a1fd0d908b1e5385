// SPDX-License-Identifier: BSD-3-Clause
// The fake's legacy API: numbers 0, 1, 2 forward (0, 1 backward) everywhere, Winograd before sm_90
// too; a filter in nhwc wants both tensors in nhwc, as documented.
#include <fmt/format.h>

#include "cudnn_algo/fake_state.h"

namespace torchalgo::cudnn::fake::detail {
namespace {

std::vector<std::int64_t> list(const int* numbers, int count) { return {numbers, numbers + count}; }

Status create(const std::shared_ptr<State>& state, LegacyKind kind, Descriptor* made) {
  const std::lock_guard lock(state->mutex);
  auto object = std::make_shared<Object>();
  object->legacy.emplace().kind = kind;
  *made = state->add(std::move(object));
  return kSuccess;
}

// The content of a descriptor of this kind, or null. The caller holds the lock.
Legacy* content(State& state, Descriptor descriptor, LegacyKind kind) {
  const ObjectPtr object = state.find(descriptor);
  if (object == nullptr || !object->legacy || object->legacy->kind != kind) return nullptr;
  return &*object->legacy;
}

// The three tensors by what they are, whatever order the direction's functions take them in.
struct Sides {
  const Legacy *x, *w, *y;
};

Sides sides_of(Role role, const Legacy* a, const Legacy* b, const Legacy* c) {
  if (role == Role::kForward) return {a, b, c};
  if (role == Role::kBackwardData) return {c, a, b};
  return {a, c, b};
}

LegacyKind kind_of(Role role, int place) {
  const int filter = role == Role::kForward ? 1 : role == Role::kBackwardData ? 0 : 2;
  return place == filter ? LegacyKind::kFilter : LegacyKind::kTensor;
}

struct Request {
  Status status = kSuccess;
  Question question;
  std::int64_t workspace = 0;
  Place a, b, c;
};

std::int64_t filter_positions(const Geometry& g) { return g.filter[0] * g.filter[1] * g.filter[2]; }

Status legacy_support(const Question& q, int algorithm) {
  const int last = q.role == Role::kForward ? 2 : 1;
  if (algorithm >= 0 && algorithm <= last) return kSuccess;
  const int winograd = q.role == Role::kForward ? 6 : q.role == Role::kBackwardData ? 4 : -1;
  return algorithm == winograd ? support(q, fake::kWinograd) : kNotSupported;
}

std::int64_t legacy_workspace(const Question& q, int algorithm) {
  const Geometry& g = q.geometry;
  if (algorithm == 0) return 0;
  if (algorithm == 1) return g.c * filter_positions(g) * 4;
  if (algorithm == 2) {
    return g.n * g.c * filter_positions(g) * g.dst[0] * g.dst[1] * g.dst[2] *
           element_bytes(q.x.element);
  }
  return g.c * g.k * 64;
}

Request make_request(State& state, Role role, Handle handle, Descriptor a, Descriptor b,
                     Descriptor c, Descriptor convolution, int algorithm) {
  const std::lock_guard lock(state.mutex);
  if (!state.accepts(handle)) return {kBadParamNullPointer, {}, 0, {}, {}, {}};
  const Legacy* const one = content(state, a, kind_of(role, 0));
  const Legacy* const two = content(state, b, kind_of(role, 1));
  const Legacy* const three = content(state, c, kind_of(role, 2));
  const Legacy* const conv = content(state, convolution, LegacyKind::kConvolution);
  for (const Legacy* given : {one, two, three, conv}) {
    if (given == nullptr || !given->is_set) {
      return {state.fail(kBadParam, "legacy: a descriptor is missing"), {}, 0, {}, {}, {}};
    }
  }
  const Sides sides = sides_of(role, one, two, three);
  Question q{
      .role = role,
      .geometry = make_geometry(sides.x->place.sizes, sides.w->place.sizes, sides.y->place.sizes,
                                conv->pad, conv->pad, conv->stride, conv->dilation),
      .x = sides.x->place,
      .w = sides.w->place,
      .y = sides.y->place,
      .sm = state.options.sm};
  if (!is_consistent(q.geometry) || q.geometry.groups != conv->groups) {
    return {state.fail(kBadParam, "legacy: the sizes do not fit"), {}, 0, {}, {}, {}};
  }
  const bool wants_nhwc = sides.w->is_channels_last;
  if (wants_nhwc && !(is_channels_last(q.x) && is_channels_last(q.y))) {
    return {state.fail(kNotSupported, "legacy: a filter in nhwc"), {}, 0, {}, {}, {}};
  }
  if (const Status status = legacy_support(q, algorithm); status != kSuccess) {
    return {state.fail(status, fmt::format("legacy: algorithm {} cannot do it", algorithm)),
            {},
            0,
            {},
            {},
            {}};
  }
  const std::int64_t workspace = legacy_workspace(q, algorithm);
  return {kSuccess, std::move(q), workspace, one->place, two->place, three->place};
}

Api::Legacy::GetWorkspace get_workspace(const std::shared_ptr<State>& state, Role role) {
  return [state, role](Handle handle, Descriptor a, Descriptor b, Descriptor convolution,
                       Descriptor c, int algorithm, std::size_t* bytes) -> Status {
    const Request request = make_request(*state, role, handle, a, b, c, convolution, algorithm);
    if (request.status == kSuccess) *bytes = static_cast<std::size_t>(request.workspace);
    return request.status;
  };
}

double scale_of(const void* scale, Element element) {
  return element == Element::kF64 ? *static_cast<const double*>(scale)
                                  : *static_cast<const float*>(scale);
}

// c = by * (a convolution of a and b) + keep * c.
void compute(Role role, const Request& request, double by, const void* a_data, const void* b_data,
             double keep, void* c_data) {
  // bwd_data: a is w, b is dy; convolve() wants dy first.
  const std::vector<double> first = read(request.a, a_data), second = read(request.b, b_data);
  std::vector<double> values = role == Role::kBackwardData
                                   ? convolve(role, request.question.geometry, second, first)
                                   : convolve(role, request.question.geometry, first, second);
  const std::vector<double> old = keep == 0 ? std::vector<double>() : read(request.c, c_data);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = by * values[i] + (keep == 0 ? 0 : keep * old[i]);
  }
  write(request.c, values, c_data);
}

Api::Legacy::Run run(const std::shared_ptr<State>& state, Role role) {
  return [state, role](Handle handle, const void* alpha, Descriptor a, const void* a_data,
                       Descriptor b, const void* b_data, Descriptor convolution, int algorithm,
                       void* workspace, std::size_t bytes, const void* beta, Descriptor c,
                       void* c_data) -> Status {
    const Request request = make_request(*state, role, handle, a, b, c, convolution, algorithm);
    if (request.status != kSuccess) return request.status;
    if (static_cast<std::int64_t>(bytes) < request.workspace) return kBadParam;
    if (request.workspace > 0 && workspace == nullptr) return kBadParamNullPointer;
    const double by = scale_of(alpha, request.c.element), keep = scale_of(beta, request.c.element);
    return state->enqueue(handle, [=] {
      poison(workspace, request.workspace);
      compute(role, request, by, a_data, b_data, keep, c_data);
      poison(workspace, request.workspace);
    });
  };
}

void add_setters(const std::shared_ptr<State>& state, Api::Legacy& legacy) {
  legacy.set_tensor = [state](Descriptor descriptor, DataType type, int rank, const int* sizes,
                              const int* strides) -> Status {
    const std::lock_guard lock(state->mutex);
    Legacy* const tensor = content(*state, descriptor, LegacyKind::kTensor);
    if (tensor == nullptr || rank < 4) return kBadParam;
    tensor->place = {*to_element(type), list(sizes, rank), list(strides, rank)};
    tensor->is_set = true;
    return kSuccess;
  };
  legacy.set_filter = [state](Descriptor descriptor, DataType type, TensorFormat format, int rank,
                              const int* sizes) -> Status {
    const std::lock_guard lock(state->mutex);
    Legacy* const filter = content(*state, descriptor, LegacyKind::kFilter);
    if (filter == nullptr || rank < 4) return kBadParam;
    filter->is_channels_last = format == TensorFormat::kNhwc;
    Place place{*to_element(type), list(sizes, rank), std::vector<std::int64_t>(rank)};
    std::int64_t step = filter->is_channels_last ? place.sizes[1] : 1;
    for (int d = rank - 1; d >= 2; --d) {
      place.strides[d] = step;
      step *= place.sizes[d];
    }
    place.strides[1] = filter->is_channels_last ? 1 : step;
    place.strides[0] = filter->is_channels_last ? step : step * place.sizes[1];
    filter->place = place;
    filter->is_set = true;
    return kSuccess;
  };
  legacy.set_convolution = [state](Descriptor descriptor, int rank, const int* pad,
                                   const int* stride, const int* dilation, ConvolutionMode mode,
                                   DataType) -> Status {
    const std::lock_guard lock(state->mutex);
    Legacy* const convolution = content(*state, descriptor, LegacyKind::kConvolution);
    if (convolution == nullptr || mode != ConvolutionMode::kCrossCorrelation) return kBadParam;
    convolution->pad = list(pad, rank);
    convolution->stride = list(stride, rank);
    convolution->dilation = list(dilation, rank);
    convolution->is_set = true;
    return kSuccess;
  };
  legacy.set_groups = [state](Descriptor descriptor, int groups) -> Status {
    const std::lock_guard lock(state->mutex);
    Legacy* const convolution = content(*state, descriptor, LegacyKind::kConvolution);
    if (convolution == nullptr) return kBadParam;
    convolution->groups = groups;
    return kSuccess;
  };
  legacy.set_math_type = [state](Descriptor descriptor, MathType math) -> Status {
    const std::lock_guard lock(state->mutex);
    Legacy* const convolution = content(*state, descriptor, LegacyKind::kConvolution);
    if (convolution == nullptr) return kBadParam;
    convolution->math = math;
    return kSuccess;
  };
}

}  // namespace

void add_legacy_functions(const std::shared_ptr<State>& state, Api& api) {
  Api::Legacy& legacy = api.legacy;
  legacy.create_tensor = [state](Descriptor* d) { return create(state, LegacyKind::kTensor, d); };
  legacy.create_filter = [state](Descriptor* d) { return create(state, LegacyKind::kFilter, d); };
  legacy.create_convolution = [state](Descriptor* d) {
    return create(state, LegacyKind::kConvolution, d);
  };
  const auto destroy = [state](Descriptor descriptor) {
    const std::lock_guard lock(state->mutex);
    return state->destroy(descriptor);
  };
  legacy.destroy_tensor = destroy;
  legacy.destroy_filter = destroy;
  legacy.destroy_convolution = destroy;
  add_setters(state, legacy);
  legacy.get_forward_workspace = get_workspace(state, Role::kForward);
  legacy.get_backward_data_workspace = get_workspace(state, Role::kBackwardData);
  legacy.get_backward_filter_workspace = get_workspace(state, Role::kBackwardFilter);
  legacy.run_forward = run(state, Role::kForward);
  legacy.run_backward_data = run(state, Role::kBackwardData);
  legacy.run_backward_filter = run(state, Role::kBackwardFilter);
}

}  // namespace torchalgo::cudnn::fake::detail
