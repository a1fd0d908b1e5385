// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include "cudnn_algo/api.h"
#include "cudnn_algo/runtime.h"
#include "ir/algorithm.h"

namespace torchalgo {

/// Returns the engines and legacy algorithms of the cuDNN that torch has mapped. cuDNN is looked up
/// at the first offer. If there is none, each algorithm refuses with the reason.
[[nodiscard]] const Algorithms& cudnn_algorithms();

/// Returns the same algorithms, which call `api` instead of the installed cuDNN. Tests use it.
[[nodiscard]] Algorithms cudnn_algorithms(std::shared_ptr<const cudnn::Api> api,
                                          cudnn::Runtime runtime);

namespace cudnn {

/// Returns the process's cuDNN. It is looked up at the first call, and at each further call until
/// it is found.
[[nodiscard]] LoadedApi process_api();

}  // namespace cudnn
}  // namespace torchalgo
