// SPDX-License-Identifier: BSD-3-Clause
#include "aten_algo/list.h"

#include "provider/with_tensors.h"

// The algorithms, one line each, in the order in which they are listed. NAME stands for the
// function NAME(), which returns an Algorithm. NAME.cpp defines it; gradients.cpp defines the last
// four.
// clang-format off
#define TORCHALGO_ATEN_ALGORITHMS(ALGORITHM) \
  ALGORITHM(conv)        \
  ALGORITHM(conv_chain)  \
  ALGORITHM(prepacked)   \
  ALGORITHM(fft)         \
  ALGORITHM(pool)        \
  ALGORITHM(eltwise)     \
  ALGORITHM(scale_shift) \
  ALGORITHM(layer_norm)  \
  ALGORITHM(group_norm)  \
  ALGORITHM(concat)      \
  ALGORITHM(slice)       \
  ALGORITHM(shuffle)     \
  ALGORITHM(pixel_shuffle) \
  ALGORITHM(resize)      \
  ALGORITHM(linear)      \
  ALGORITHM(attention)   \
  ALGORITHM(batch_norm)     \
  ALGORITHM(bwd_activation) \
  ALGORITHM(bwd_pool)       \
  ALGORITHM(channel_sums)
// clang-format on

namespace torchalgo {
namespace aten {

#define DECLARE(name) Algorithm name();
TORCHALGO_ATEN_ALGORITHMS(DECLARE)

}  // namespace aten

const Algorithms& aten_algorithms() {
#define CALL(name) aten::name(),
  static const Algorithms algorithms = [] {
    Algorithms list = {TORCHALGO_ATEN_ALGORITHMS(CALL)};
    prepare_with_tensors(list);
    return list;
  }();
  return algorithms;
}

}  // namespace torchalgo
