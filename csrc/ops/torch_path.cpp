// SPDX-License-Identifier: BSD-3-Clause
#include "ops/torch_path.h"

namespace torchalgo {

int& TorchPath::depth() {
  thread_local int depth = 0;
  return depth;
}

}  // namespace torchalgo
