// SPDX-License-Identifier: BSD-3-Clause
#include "ir/view.h"

#include <utility>
#include <vector>

namespace torchalgo {
namespace {

enum class Axis : std::uint8_t { kBatch, kChannel, kPosition };
using Walk = std::vector<std::pair<Axis, std::int64_t>>;

// Returns the order in which the elements of a tensor lie in memory, outermost axis first. Axes of
// size 1 are left out and neighbouring steps along one axis are merged, so that equal orders give
// equal walks.
Walk walk_of(std::int64_t n, std::int64_t c, std::int64_t spatial, Layout layout) {
  Walk walk;
  const auto add = [&walk](Axis axis, std::int64_t extent) {
    if (extent == 1) return;
    if (!walk.empty() && walk.back().first == axis) {
      walk.back().second *= extent;
    } else {
      walk.emplace_back(axis, extent);
    }
  };
  const std::int64_t inner = untyped(layout) == Layout::kNhwc ? c : block_size(layout);
  add(Axis::kBatch, n);
  add(Axis::kChannel, c / inner);
  add(Axis::kPosition, spatial);
  add(Axis::kChannel, inner);
  return walk;
}

}  // namespace

bool lies_alike(std::int64_t n, std::int64_t c, std::int64_t spatial, Layout a, Layout b) {
  if (is_typed(a) != is_typed(b)) return false;
  if (c % block_size(a) != 0 || c % block_size(b) != 0) return false;
  return walk_of(n, c, spatial, a) == walk_of(n, c, spatial, b);
}

}  // namespace torchalgo
