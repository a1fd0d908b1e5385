// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>

#include "cudnn_algo/api.h"

namespace torchalgo::cudnn {

/// What execution needs of torch's CUDA side, as functions, so that a test runs without a GPU.
struct Runtime {
  std::function<Handle()> handle;  // torch's, of the current device and thread
  std::function<Stream()> stream;  // torch's current one
  std::function<bool()>
      is_capturing;  // whether that stream records a CUDA graph: build nothing then
  /// Makes GPU `index` current until the result is gone; nothing happens for -1.
  std::function<std::shared_ptr<void>(int index)> on_device;
};

/// That of the torch in this process, by symbols of the CUDA libraries that it has mapped; each
/// function throws Error where they are missing.
[[nodiscard]] Runtime torch_runtime();

}  // namespace torchalgo::cudnn
