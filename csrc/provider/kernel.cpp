// SPDX-License-Identifier: BSD-3-Clause
#include "provider/kernel.h"

#include <algorithm>

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
  const DType dtype = dtype_of(kernel.problem);
  const DType stored = stored_type(kernel.primitive, dtype);
  if (!kernel.least_work) return {0, least_bytes(kernel.problem, stored)};
  Work work = kernel.least_work();
  // In coarser types there are fewer bytes, and the highest rate of multiplications is another one.
  if (stored != dtype) work = {0, std::min(work.bytes, least_bytes(kernel.problem, stored))};
  return work;
}

}  // namespace torchalgo
