// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cudnn_algo/abi.h"
#include "cudnn_algo/fake_math.h"

namespace torchalgo::cudnn::fake {

/// What an engine is asked about: a convolution, its tensors, the GPU.
struct Question {
  Role role = Role::kForward;
  bool has_epilogue = false;
  Geometry geometry;
  Place x, w, y;
  int sm = 90;               // 10 * compute capability
  bool has_compiler = true;  // whether libcuda is there for run-time compilation
};

struct KnobModel {
  KnobType type;
  std::int64_t minimum, maximum, stride, standard;
};

/// One engine of the fake: what a real one says about itself.
struct EngineModel {
  std::int64_t id;
  std::vector<NumericalNote> numerical;
  std::vector<BehaviorNote> behavior;
  std::vector<KnobModel> knobs;
};

using KnobValues = std::map<KnobType, std::int64_t>;

inline constexpr KnobType kSplitK = 0;    // CUDNN_KNOB_TYPE_SPLIT_K
inline constexpr KnobType kTileSize = 2;  // CUDNN_KNOB_TYPE_TILE_SIZE

inline constexpr std::int64_t kGeneric = 0;          // any layout, no workspace
inline constexpr std::int64_t kPrecomputed = 1;      // nchw; converts others; no dilation
inline constexpr std::int64_t kTensorCores = 2;      // nhwc; converts others; two knobs; sm_80
inline constexpr std::int64_t kRuntimeCompiled = 3;  // nhwc
inline constexpr std::int64_t kAtomics = 4;          // gradients only, not deterministic
inline constexpr std::int64_t kDownConverting = 5;   // float inputs as half
inline constexpr std::int64_t kWinograd = 6;         // 3x3, stride 1, before sm_90

/// All of them, by id.
[[nodiscard]] const std::vector<EngineModel>& engine_models();

/// kSuccess, or why this engine cannot do it.
[[nodiscard]] Status support(const Question& question, std::int64_t engine);

/// The knobs' values with the standard for those not given; kSuccess only if all are legal.
struct KnobAnswer {
  Status status = kSuccess;
  KnobValues values;
};
[[nodiscard]] KnobAnswer complete(std::int64_t engine, const KnobValues& given);

[[nodiscard]] std::int64_t workspace_bytes(const Question& question, std::int64_t engine,
                                           const KnobValues& values);

/// Whether the tensor lies with its channels last.
[[nodiscard]] bool is_channels_last(const Place& place);

}  // namespace torchalgo::cudnn::fake
