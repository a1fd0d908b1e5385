// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu_algo/conv.h"
#include "cpu_algo/kernels/filter_blocks.h"
#include "ir/problem.h"

namespace torchalgo::cpu {

/// The blocks of 16 channels of each group of a gradient with respect to weights, divided into
/// tasks of at most `most` x `most` blocks. If possible, there are several tasks per thread.
class FilterDivision {
 public:
  FilterDivision(const ConvProblem& conv, std::int64_t most, std::int64_t threads)
      : groups_(conv.groups),
        k_blocks_(channel_blocks(conv.k / conv.groups)),
        c_blocks_(channel_blocks(conv.c / conv.groups)),
        k_parts_(ceil_div(k_blocks_, most)),
        c_parts_(ceil_div(c_blocks_, most)) {
    const std::int64_t wanted = threads == 1 ? 1 : threads * kTasksPerThread;
    while (tasks() < wanted && k_parts_ < k_blocks_) k_parts_ = std::min(k_blocks_, 2 * k_parts_);
    while (tasks() < wanted && c_parts_ < c_blocks_) c_parts_ = std::min(c_blocks_, 2 * c_parts_);
  }

  [[nodiscard]] std::int64_t tasks() const { return groups_ * k_parts_ * c_parts_; }

  [[nodiscard]] kernels::FilterBlocks blocks(std::int64_t task) const {
    const std::int64_t group = task / (k_parts_ * c_parts_);
    const std::int64_t k = task / c_parts_ % k_parts_, c = task % c_parts_;
    return {group * k_blocks_ + k_blocks_ * k / k_parts_,
            group * k_blocks_ + k_blocks_ * (k + 1) / k_parts_,
            group * c_blocks_ + c_blocks_ * c / c_parts_,
            group * c_blocks_ + c_blocks_ * (c + 1) / c_parts_};
  }

  /// Returns the sizes of the largest task, from 0.
  [[nodiscard]] kernels::FilterBlocks largest() const {
    return {0, ceil_div(k_blocks_, k_parts_), 0, ceil_div(c_blocks_, c_parts_)};
  }

  /// Returns the first input channel of `blocks`, counted from the first one of its group.
  [[nodiscard]] std::int64_t first_channel(const kernels::FilterBlocks& blocks) const {
    return blocks.c_begin % c_blocks_ * 16;
  }

 private:
  static constexpr std::int64_t kTasksPerThread = 2;

  std::int64_t groups_, k_blocks_, c_blocks_;  // blocks of a group
  std::int64_t k_parts_, c_parts_;
};

}  // namespace torchalgo::cpu
