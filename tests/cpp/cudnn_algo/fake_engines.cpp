// SPDX-License-Identifier: BSD-3-Clause
#include "cudnn_algo/fake_engines.h"

namespace torchalgo::cudnn::fake {
namespace {

bool is_half(const Place& place) {
  return place.element == Element::kF16 || place.element == Element::kBf16;
}

std::int64_t bytes_of(const Place& place) {
  return element_count(place) * element_bytes(place.element);
}

bool is_dilated(const Geometry& g) { return g.dilation != Triple{1, 1, 1}; }

bool is_winograd_shape(const Geometry& g) {
  return g.filter == Triple{1, 3, 3} && g.stride == Triple{1, 1, 1} && !is_dilated(g) &&
         g.groups == 1;
}

}  // namespace

const std::vector<EngineModel>& engine_models() {
  using enum NumericalNote;
  static const std::vector<EngineModel> models = {
      {kGeneric, {kStrictNanProp}, {}, {}},
      {kPrecomputed, {}, {BehaviorNote::kSupportsCudaGraphNativeApi}, {}},
      {kTensorCores,
       {kTensorCore},
       {},
       {{.type = kSplitK, .minimum = 1, .maximum = 4, .stride = 1, .standard = 1},
        {.type = kTileSize, .minimum = 0, .maximum = 6, .stride = 2, .standard = 4}}},
      {kRuntimeCompiled, {kTensorCore}, {BehaviorNote::kRuntimeCompilation}, {}},
      {kAtomics, {kNondeterministic}, {}, {}},
      {kDownConverting, {kTensorCore, kDownConvertInputs}, {}, {}},
      {fake::kWinograd, {NumericalNote::kWinograd, kWinogradTile4x4}, {}, {}},
  };
  return models;
}

Status support(const Question& q, std::int64_t engine) {
  const bool is_nhwc = is_channels_last(q.x) && is_channels_last(q.w) && is_channels_last(q.y);
  switch (engine) {
    case kGeneric:
      return kSuccess;
    case kPrecomputed:
      return is_dilated(q.geometry) ? kNotSupported : kSuccess;
    case kTensorCores:
      if (q.x.element == Element::kF64) return kNotSupportedDataType;
      if (q.x.alignment < 16 || q.y.alignment < 16) return kNotSupported;
      return q.sm >= 80 ? kSuccess : kNotSupportedArchMismatch;
    case kRuntimeCompiled:
      if (!is_nhwc || !is_half(q.x)) return kNotSupportedLayout;
      return q.sm >= 80 ? kSuccess : kNotSupportedArchMismatch;
    case kAtomics:
      return q.role == Role::kForward ? kNotSupported : kSuccess;
    case kDownConverting:
      return q.x.element == Element::kF32 ? kSuccess : kNotSupportedDataType;
    case fake::kWinograd:
      if (q.sm >= 90) return kNotSupportedArchMismatch;
      return is_winograd_shape(q.geometry) && q.role != Role::kBackwardFilter ? kSuccess
                                                                              : kNotSupportedShape;
    default:
      return kBadParam;
  }
}

KnobAnswer complete(std::int64_t engine, const KnobValues& given) {
  KnobAnswer answer;
  for (const KnobModel& knob : engine_models()[static_cast<std::size_t>(engine)].knobs) {
    answer.values[knob.type] = knob.standard;
  }
  for (const auto& [type, value] : given) {
    const KnobModel* model = nullptr;
    for (const KnobModel& knob : engine_models()[static_cast<std::size_t>(engine)].knobs) {
      if (knob.type == type) model = &knob;
    }
    if (model == nullptr) return {kBadParam, {}};
    const bool is_legal = value >= model->minimum && value <= model->maximum &&
                          (value - model->minimum) % model->stride == 0;
    if (!is_legal) return {kNotSupported, {}};
    answer.values[type] = value;
  }
  return answer;
}

std::int64_t workspace_bytes(const Question& q, std::int64_t engine, const KnobValues& values) {
  const Geometry& g = q.geometry;
  std::int64_t copied = 0;
  for (const Place* place : {&q.x, &q.w, &q.y}) {
    const bool is_native = is_channels_last(*place) == (engine == kTensorCores);
    if (!is_native) copied += bytes_of(*place);
  }
  switch (engine) {
    case kPrecomputed:
      return g.c * g.filter[0] * g.filter[1] * g.filter[2] * 4 + copied;
    case kTensorCores: {
      const std::int64_t parts = values.at(kSplitK);
      return copied + (copied > 0 ? 16 : 0) +
             (parts > 1 ? parts * element_count(q.y) * std::int64_t{4} : 0);
    }
    case kDownConverting:
      return (element_count(q.x) + element_count(q.w) + element_count(q.y)) * 2;
    case fake::kWinograd:
      return g.c * g.k * 16 * 4;
    default:
      return 0;
  }
}

bool is_channels_last(const Place& place) {
  // Where it makes no difference (one channel, one position) cuDNN too goes by the strides.
  return place.strides.size() > 1 && place.strides[1] == 1 &&
         !(place.strides.back() == 1 && place.sizes.back() > 1);
}

}  // namespace torchalgo::cudnn::fake
