// SPDX-License-Identifier: BSD-3-Clause
#include "provider/kernel.h"

namespace torchalgo {

Packed pack(const Kernel& kernel, const Weights& weights) {
  return kernel.pack ? kernel.pack(weights) : Packed();
}

std::int64_t packed_bytes(const Kernel& kernel) {
  if (!kernel.pack || plain_weight_bytes(kernel.problem) == 0) return 0;
  if (kernel.packed_bytes) return kernel.packed_bytes();
  const Weights plain = zero_weights(kernel.problem);
  return held_bytes(kernel.pack(plain), plain);
}

Work least_work(const Kernel& kernel) {
  return kernel.least_work ? kernel.least_work() : Work{0, least_bytes(kernel.problem)};
}

}  // namespace torchalgo
