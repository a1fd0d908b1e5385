// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/primitive.h"
#include "ir/problem.h"

namespace torchalgo {

/// A part of a buffer that begins at `channel`.
struct BufferPart {
  int buffer = -1;  // index of Schedule::buffers
  std::int64_t channel = 0;
  bool operator==(const BufferPart&) const = default;
};

/// A plan in terms of its graph: what runs, in which order, and which tensor is in which layout.
/// All changes of layout are placed. It is static: sizes, threads and devices may differ in a call.
/// It says when a tensor is read for the last time, and not where in memory it lies.
struct Schedule {
  /// A tensor: a value in one layout.
  struct Slot {
    int value = -1;  // of the graph
    Layout layout = Layout::kNchw;
    std::int64_t bytes = 0;  // for the planned sizes, with the padding of blocks; 0: unknown
    int writer = -1;         // step; -1: an input
    int last_use = -1;       // the last step that reads it; the number of steps: the caller gets it
    int view_of = -1;        // the slot whose memory it is; -1: it has its own
    std::optional<BufferPart> part;  // where it is written, if it is a part of a concatenation
    bool operator==(const Slot&) const = default;
  };

  /// One call. It runs a primitive, or is an op that is left to the front end: an opaque one.
  struct Step {
    std::string layer;               // name of the node, or of the value whose layout changes
    std::vector<int> covers;         // nodes, the anchor first; none: a change of layout
    std::optional<Problem> problem;  // with the epilogue; nullopt: opaque
    Primitive primitive;             // of a problem
    std::vector<int> src;            // slots, in call order
    std::optional<int> residual;     // slot
    std::vector<int> dst;            // slots; an opaque op may have several or none
    std::optional<int> buffer;       // of a view.concat: the buffer that holds its parts
    bool operator==(const Step&) const = default;
  };

  std::vector<std::vector<std::int64_t>> buffers;  // sizes in memory: n, blocks, h, w, block
  std::vector<Slot> slots;                         // those of `inputs` first
  std::vector<Step> steps;
  int forward_steps = 0;     // the later ones compute gradients
  std::vector<int> inputs;   // slots, as Graph::inputs
  std::vector<int> outputs;  // slots, as Graph::outputs
  bool operator==(const Schedule&) const = default;
};

[[nodiscard]] inline bool is_layout_change(const Schedule::Step& step) {
  return step.covers.empty();
}

}  // namespace torchalgo
