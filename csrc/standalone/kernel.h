// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>

#include "standalone/threads.h"

namespace torchalgo::cpu {

/// The weights of a layer as the model has them: kcrs, contiguous.
struct PlainWeights {
  const float* weights = nullptr;
  const float* bias = nullptr;  // null if the problem has none
};

/// The memory of one run. Tensors lie in the primitive's layouts.
struct RunArgs {
  const float* src = nullptr;
  const float* diff_dst = nullptr;  // the second input of a gradient with respect to weights
  const float* weights = nullptr;   // as `pack` wrote them, or the model's own
  const float* bias = nullptr;      // likewise; null if the problem has none
  const float* residual = nullptr;  // laid out as dst; null if the problem has none
  float* dst = nullptr;             // the gradient in kcrs, of a gradient with respect to weights
  void* workspace = nullptr;        // workspace_bytes, 64-byte aligned, content undefined
};

/// A primitive that is bound to one problem and a number of threads, on plain memory.
struct StandaloneKernel {
  std::int64_t workspace_bytes = 0;
  /// The floats of the packed weights and bias. If 0, `run` reads those of the model.
  std::int64_t weight_floats = 0, bias_floats = 0;
  /// Writes all weight_floats and bias_floats to memory that is 64-byte aligned. Null if both are
  /// 0.
  std::function<void(const PlainWeights&, float* weights, float* bias, const Threads&)> pack;
  /// Writes all of dst, with zeros in pad lanes. It allocates nothing. Several threads may call it
  /// at once with different dst and workspace.
  std::function<void(const RunArgs&, const Threads&)> run;
};

}  // namespace torchalgo::cpu
