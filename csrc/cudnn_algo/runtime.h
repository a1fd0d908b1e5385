// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>

#include "cudnn_algo/api.h"

namespace torchalgo::cudnn {

/// The functions of torch's CUDA part that execution needs. They are a struct, so that a test needs
/// no GPU.
struct Runtime {
  std::function<int()> device;     // the index of the current GPU
  std::function<Stream()> stream;  // torch's current one
  std::function<bool()>
      is_capturing;  // true if that stream captures a CUDA graph: build nothing then
  /// Makes GPU `index` current until the result is destroyed. Does nothing for -1.
  std::function<std::shared_ptr<void>(int index)> on_device;
};

/// Returns the functions of the torch in this process, by symbols of the CUDA libraries that it has
/// mapped. Each function throws Error if its symbols are missing.
[[nodiscard]] Runtime torch_runtime();

}  // namespace torchalgo::cudnn
