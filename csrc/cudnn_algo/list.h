// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include "cudnn_algo/api.h"
#include "cudnn_algo/runtime.h"
#include "provider/algorithm.h"

namespace torchalgo {

/// cuDNN's engines and legacy algorithms, of the cuDNN that torch has mapped: it is looked up at
/// the first offer, and if there is none, each algorithm refuses with the reason.
[[nodiscard]] const Algorithms& cudnn_algorithms();

/// Returns the same algorithms, which call `api` instead of the installed cuDNN. Tests use it.
[[nodiscard]] Algorithms cudnn_algorithms(std::shared_ptr<const cudnn::Api> api,
                                          cudnn::Runtime runtime);

namespace cudnn {

/// The process's cuDNN, looked up at the first call and again while there is none.
[[nodiscard]] LoadedApi process_api();

}  // namespace cudnn
}  // namespace torchalgo
