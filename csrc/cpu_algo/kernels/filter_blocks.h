// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace torchalgo::kernels {

/// The part of a gradient with respect to weights that a task computes: output blocks
/// [k_begin, k_end) and input blocks [c_begin, c_end) of 16 channels.
struct FilterBlocks {
  std::int64_t k_begin = 0, k_end = 0, c_begin = 0, c_end = 0;
  [[nodiscard]] constexpr std::int64_t count() const {
    return (k_end - k_begin) * (c_end - c_begin);
  }
};

}  // namespace torchalgo::kernels
