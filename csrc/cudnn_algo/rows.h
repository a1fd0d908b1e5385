// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>

#include "cudnn_algo/api.h"
#include "cudnn_algo/engine.h"
#include "cudnn_algo/runtime.h"
#include "provider/algorithm.h"

namespace torchalgo::cudnn {

/// What a row runs on. `load` is called at the first offer or run, never at start-up, since torch
/// may map cuDNN after torchalgo is loaded.
struct Library {
  std::function<LoadedApi()> load;
  Runtime runtime;
};

/// library.load().api. @throws Error  with the absence.
[[nodiscard]] std::shared_ptr<const Api> require_api(const Library& library);

/// "cudnn9.conv", ...: the engines of one pattern. engine_row.cpp
[[nodiscard]] Algorithm engine_row(const PatternInfo& pattern, const Library& library);

/// "cudnn_legacy.fwd", ...: the numbers of one direction. legacy_row.cpp
[[nodiscard]] Algorithm legacy_row(Direction direction, const Library& library);

}  // namespace torchalgo::cudnn
