// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/planning.h"
#include "ir/threads.h"
#include "ir/work.h"

namespace torchalgo::cpu {

/// The constants of one layer: weights and bias, or scale and shift. Null if it has none. Those of
/// a model are contiguous, in kcrs.
struct LayerPointers {
  const float* weights = nullptr;
  const float* bias = nullptr;
};

/// Memory for packed constants, 64-byte aligned. Null if none are packed.
struct PackedPointers {
  float* weights = nullptr;
  float* bias = nullptr;
};

/// Returns the elements of a tensor in a layout of bf16, whose pointer RunArgs holds.
[[nodiscard]] inline const std::uint16_t* as_bf16(const float* elements) {
  return reinterpret_cast<const std::uint16_t*>(elements);
}
[[nodiscard]] inline std::uint16_t* as_bf16(float* elements) {
  return reinterpret_cast<std::uint16_t*>(elements);
}

/// The memory of one run. Tensors lie in the primitive's layouts, which may say another type of
/// elements than float: see as_bf16().
struct RunArgs {
  std::span<const float* const> src;       // in the order of input_sizes(), without the residual
  std::span<const LayerPointers> weights;  // an entry for each of PlainKernel::packed, at least one
  const float* residual = nullptr;         // laid out as dst; null if the problem has none
  float* dst = nullptr;                    // kcrs, in a gradient with respect to weights
  void* workspace = nullptr;               // workspace_bytes, 64-byte aligned, content undefined
  /// The strides of each src and of dst in floats, for a kernel that `takes_strides`. Empty: all
  /// are dense.
  std::span<const std::int64_t* const> strides = {};
};

/// How many floats are packed for a layer. If 0, `run` reads those of the model's layer of the same
/// number.
struct PackedFloats {
  std::int64_t weights = 0, bias = 0;
};

/// A primitive that is bound to one problem and a number of threads, on plain memory.
struct PlainKernel {
  std::int64_t workspace_bytes = 0;
  std::vector<PackedFloats> packed = {};  // empty: nothing is packed
  /// Names what the packed constants depend on, beside the model's own. Kernels of one algorithm
  /// can share them if they have equal names. Empty: they fit this problem and primitive only.
  std::string packing = {};
  /// Writes all of `packed`. `model` has an entry for each of layers_of(problem). Null if nothing
  /// is packed.
  std::function<void(std::span<const LayerPointers> model, std::span<const PackedPointers> packed,
                     const Threads&)>
      pack = nullptr;
  /// Writes all of dst, with zeros in pad lanes. It allocates nothing. Several threads may call it
  /// at once with different dst and workspace.
  std::function<void(const RunArgs&, const Threads&)> run = nullptr;
  /// Returns the work that every run must do. Null: each byte once, and no arithmetic.
  PlanningFunction<Work()> least_work = nullptr;
  bool takes_strides = false;  // src and dst may have any strides: see RunArgs::strides
};

}  // namespace torchalgo::cpu
